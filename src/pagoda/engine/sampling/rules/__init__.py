"""What sampling parameters change in the logits of single tokens: a file for each rule."""
