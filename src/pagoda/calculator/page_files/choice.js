// What is chosen: kept in the address, so that it can be passed on.

export const FORMATS = {
  auto: "as the model computes",
  fp8: "fp8, one scale for all",
  fp8_per_token_head: "fp8, scales a token and head",
  int8_per_token_head: "int8, scales a token and head",
  int4_per_token_head: "int4, scales a token and head",
  nvfp4: "nvfp4, a scale for 16 numbers",
  turboquant_k8v4: "TurboQuant, keys 8 and values 4 bits",
  turboquant_4bit_nc: "TurboQuant, 4 bits",
  turboquant_k3v4_nc: "TurboQuant, keys 3 and values 4 bits",
  turboquant_3bit_nc: "TurboQuant, 3 bits",
  fp8_ds_mla: "fp8, packed latent",
  int8_per_group: "int8, scales for 128 numbers of a latent",
  nvfp4_ds_mla: "nvfp4, packed latent",
};

export const SCHEMES = {
  "": "as published",
  none: "not quantised",
  fp8: "fp8",
  int8: "int8",
  awq: "int4 (AWQ)",
  gptq: "int4 (GPTQ)",
  nvfp4: "nvfp4",
  q8_0: "quantised to 8 bits (q8_0)",
  q6_k: "quantised to 6 bits (q6_k)",
  q4_k: "quantised to 4 bits (q4_k)",
  q4_0: "quantised to 4 bits (q4_0)",
};

const DEFAULTS = {
  model: "meta-llama/Llama-3.1-8B-Instruct",
  gpu: "H100",
  tensor_parallel_size: 1,
  context: 32_768,
  users: 8,
  kv_cache_dtype: "auto",
  kv_retention: "full",
  quantization: null,
  shared_prefix: 0,
  max_model_len: null,
  gpu_memory_utilization: null,
  price: null,
  engine: "vllm",
};
const TABLES = { model: "models", gpu: "devices", engine: "engines" };
const COUNTS = ["tensor_parallel_size", "context", "users", "shared_prefix", "max_model_len"];

/** What an address names and the tables lack: field and name of each. */
export function unknownIn(tables, hash) {
  const told = new URLSearchParams(hash.replace(/^#/, ""));
  return Object.entries(TABLES).flatMap(([name, table]) => {
    const value = told.get(name);
    return value && !Object.hasOwn(tables[table], value) ? [[name, value]] : [];
  });
}

/** The choice of an address, made good where it names what is not there. */
export function readChoice(tables, hash) {
  const choice = { ...DEFAULTS };
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (COUNTS.includes(name)) choice[name] = countOf(text) ?? DEFAULTS[name];
    else if (name === "gpu_memory_utilization") choice[name] = shareOf(text);
    else if (name === "price") choice[name] = priceOf(text);
    else if (name in DEFAULTS) choice[name] = text || null;
  }
  if (new URLSearchParams(hash.replace(/^#/, "")).get("users") === "all") choice.users = null;
  for (const [name, table] of Object.entries(TABLES)) {
    if (!Object.hasOwn(tables[table], choice[name])) choice[name] = DEFAULTS[name];
  }
  if (!Object.hasOwn(SCHEMES, choice.quantization ?? "")) choice.quantization = null;
  if (!Object.hasOwn(FORMATS, choice.kv_cache_dtype)) choice.kv_cache_dtype = "auto";
  return choice;
}

/** The address of a choice: what is not the default, and always model, device and load. */
export function writeChoice(choice) {
  const told = Object.entries(choice).filter(
    ([name, value]) => ALWAYS.includes(name) || value !== DEFAULTS[name],
  );
  const fields = told.map(([name, value]) => [name, value ?? (name === "users" ? "all" : "")]);
  return `#${new URLSearchParams(fields)}`.replaceAll("%2F", "/");
}

const ALWAYS = ["model", "gpu", "context", "users"];

/** The planner's request. Where no longest request is named the context is the longest. */
export function requestOf(choice) {
  if (choice.max_model_len !== null) return { ...choice };
  return { ...choice, max_model_len: choice.context, context: null };
}

/** The choice of a planner's request for so long a context; the other way round. */
export function choiceOf(request, context) {
  const choice = { ...request, gpu: request.gpu ?? DEFAULTS.gpu, context };
  return request.context === null ? { ...choice, max_model_len: null } : choice;
}

/** A word of a command as a shell has to be given it. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** The words of `pagoda plan` for a choice; `model` is what it is called there. */
export function commandOf({ devices }, choice, model) {
  const { vendor, bytes } = devices[choice.gpu];
  const flags = [
    vendor ? ["gpu", choice.gpu] : ["memory", bytes],
    ["tensor-parallel-size", choice.tensor_parallel_size === 1 ? null : choice.tensor_parallel_size],
    ["quantization", choice.quantization],
    ["kv-cache-dtype", choice.kv_cache_dtype === "auto" ? null : choice.kv_cache_dtype],
    ["kv-retention", choice.kv_retention === "full" ? null : choice.kv_retention],
    ["max-model-len", choice.max_model_len ?? choice.context],
    ["context", choice.max_model_len === null ? null : choice.context],
    ["users", choice.users],
    ["shared-prefix", choice.shared_prefix || null],
    ["gpu-memory-utilization", choice.gpu_memory_utilization],
    ["price", choice.price],
    ["engine", choice.engine === "vllm" ? null : choice.engine],
  ];
  const told = flags.filter(([, value]) => value !== null);
  return [`pagoda plan ${quoted(model)}`, ...told.map(([name, value]) => `--${name} ${value}`)];
}

function countOf(text) {
  return /^[1-9]\d*$/.test(text) ? Number(text) : null;
}

function priceOf(text) {
  const price = Number(text || "no");
  return Number.isFinite(price) && price >= 0 ? price : null;
}

function shareOf(text) {
  const share = Number(text);
  return share > 0 && share <= 1 ? share : null;
}
