// One answer of the server, piece by piece.

/** The server would not answer, or broke off. `wait`: seconds until it wants to be asked again. */
export class Refusal extends Error {
  constructor(message, wait = 0) {
    super(message);
    this.wait = wait;
  }
}

/** The chunks of a chat completion as they come. Throws a `Refusal`, or what `fetch` throws. */
export async function* chunks(body, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refusal(`The answer broke off: ${chunk.error.message}.`);
    yield chunk;
  }
  throw new Refusal("The connection ended before the answer did.");
}

/** The data of each server-sent event in a stream of bytes. */
export async function* events(bytes) {
  const reader = bytes.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines.map((line) => line.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      else if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}

/** What the server says of why it would not answer. */
export async function refusal(response) {
  const body = await response.json().catch(() => null);
  const reason = body?.error?.message ?? (response.statusText || "no reason was given");
  const asksToWait = response.status === 429 || response.status === 503;
  const wait = asksToWait ? seconds(response.headers.get("Retry-After")) : 0;
  return new Refusal(`The server answered ${response.status}: ${reason}.`, wait);
}

/** What `Retry-After` says: a number of seconds, or a date. */
function seconds(value) {
  const number = value === null ? 0 : Number(value);
  const wait = Number.isNaN(number) ? (Date.parse(value) - Date.now()) / 1000 : number;
  return Math.max(0, Math.ceil(wait) || 0);
}
