// What transformers.js computes from exported folders: node transformers_js.cjs NODE_FOLDER < asked > answers.
// asked: {folders: path above them, names: [name], texts: [text], masked: text}.
// answers: {name: {ids, mask: rows of numbers; outputs: {name: {dims, data}}; words or classes: of a pipeline}}.
const { createRequire } = require('node:module');
const { readFileSync } = require('node:fs');
const { env, AutoModel, AutoTokenizer, pipeline } = createRequire(`${process.argv[2]}/`)('@huggingface/transformers');

async function answer({ folders, names, texts, masked }) {
  env.allowRemoteModels = false;
  env.localModelPath = folders;
  const answers = {};
  for (const name of names) {
    const tokenizer = await AutoTokenizer.from_pretrained(name);
    const model = await AutoModel.from_pretrained(name, { dtype: 'fp32' });
    const inputs = tokenizer(texts, { padding: true, truncation: true });
    const outputs = {};
    for (const [key, { dims, data }] of Object.entries(await model(inputs))) outputs[key] = { dims, data: Array.from(data) };
    const [ids, mask] = [inputs.input_ids, inputs.attention_mask].map((rows) => rows.tolist().map((row) => row.map(Number)));
    const isClassifier = name === 'classifier';
    const pipe = await pipeline(isClassifier ? 'text-classification' : 'fill-mask', name, { dtype: 'fp32' });
    const found = await pipe(isClassifier ? texts : masked, { top_k: 3 });
    answers[name] = { ids, mask, outputs, found };
  }
  return answers;
}

answer(JSON.parse(readFileSync(0, 'utf8'))).then((answers) => process.stdout.write(JSON.stringify(answers)));
