"""From logits to tokens, in main memory and on a device."""
