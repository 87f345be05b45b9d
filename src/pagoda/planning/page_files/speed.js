// How fast the machine could be at best: bytes over bandwidth, operations over their rate.

/** The floor for so many users of the subject's context. */
export function speedFloor(subject, users) {
  const { model, device, ranks, weights, layers, context, quantization } = subject;
  const cache = layers.reduce((sum, layer) => sum + layer.readBytes(context), 0);
  const read = weights.readBytes(users);
  const step = (read / ranks + users * cache) / device.bandwidth;
  const rate = quantization === "fp8" && device.fp8_rate ? device.fp8_rate : device.rate;
  const [embedding, ownHead, , , active] = model.numbers;
  const head = ownHead || embedding; // for the last token alone
  const operations = 2 * ((active - head) * context + head) + attention(layers, model.heads, context);
  const prefill = operations / (rate * ranks);
  return {
    users,
    context,
    weight_read_bytes: read,
    cache_read_bytes: users * cache * ranks,
    step_s: step,
    tokens_per_s: 1 / step,
    total_tokens_per_s: users / step,
    prefill_s: prefill,
    prefill_tokens_per_s: context / prefill,
  };
}

/** Operations of scores and weighted values; of latents, which can be computed in two ways, none. */
function attention(layers, heads, context) {
  return layers.reduce((total, layer) => {
    if (!layer.widths) return total;
    const seen = Math.min(context, Math.floor(layer.readBytes(context) / layer.blockBytes(1)));
    const pairs = seen * context - Math.floor((seen * seen) / 2);
    return total + 2 * heads * layer.widths * pairs;
  }, 0);
}
