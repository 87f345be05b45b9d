// How fast the machine could be at best: bytes over bandwidth, operations over their rate.

import { expertsRead } from "./memory.js";

/** The least times for so many users of the subject's context. */
export function speedFloor(subject, users) {
  const { model, active, device, ranks, weights, layers, context, quantization } = subject;
  const cache = layers.reduce((sum, layer) => sum + layer.readBytes(context), 0);
  const read = weights.readBytes(users);
  const rate = device.rates[quantization] ?? device.rate;
  const [embedding, ownHead] = model.numbers;
  const head = ownHead || embedding; // for the last token alone
  const seen = attended(layers, model, context);
  const own = seen.reduce((sum, [each, tokens]) => sum + each * tokens, 2 * active);
  const step = Math.max((read / ranks + users * cache) / device.bandwidth, (users * own) / (rate * ranks));
  const operations = seen.reduce(
    (sum, [each, tokens]) => sum + each * pairs(tokens, context),
    2 * ((active - head) * context + head),
  );
  const prefill = operations / (rate * ranks);
  return {
    users,
    context,
    weight_read_bytes: read,
    experts_read: expertsRead(model, users),
    cache_read_bytes: users * cache * ranks,
    step_s: step,
    tokens_per_s: 1 / step,
    total_tokens_per_s: users / step,
    prefill_s: prefill,
    prefill_tokens_per_s: context / prefill,
  };
}

/** For each layer operations of scores and weighted values a token seen, and tokens seen. */
function attended(layers, { heads, latent_pair: latentPair }, context) {
  return layers.flatMap((layer) => {
    const { widths, most } = layer;
    if (!widths && !most) return [];
    const seen = Math.min(context, Math.floor(layer.readBytes(context) / layer.blockBytes(1)));
    return [widths ? [2 * heads * widths, seen] : [2 * heads * latentPair, Math.min(seen, most)]];
  });
}

/** Of each of so many tokens with those before it, up to `seen` of them. */
const pairs = (seen, context) => seen * context - Math.floor((seen * seen) / 2);
