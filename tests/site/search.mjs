// Asks the search of a built site, by its own engine: the worker that its pages load.
// usage: node search.mjs SITE QUERY...     prints JSON: for each query the locations that it finds, best first
import { readdirSync, readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const SET_UP = 0, READY = 1, QUERY = 2, RESULT = 3;
const folder = `${site}/assets/javascripts/workers`;
const answers = [];
globalThis.self = { postMessage: message => answers.push(message) };
runInThisContext(readFileSync(`${folder}/${readdirSync(folder).find(name => name.startsWith("search"))}`, "utf8"));

async function ask(type, data, expected) {
  self.onmessage({ data: { type, data } });
  while (!answers.length) await new Promise(resume => setTimeout(resume, 1));
  const answer = answers.pop();
  if (answer.type !== expected) throw new Error(`the worker answers ${answer.type}, expected ${expected}`);
  return answer.data;
}

const index = JSON.parse(readFileSync(`${site}/search.json`, "utf8"));
await ask(SET_UP, index, READY);
const all = { type: "operator", data: { operator: "and", operands: [] } };
const found = {};
for (const query of queries) {
  const { items } = await ask(QUERY, { input: query, filter: { input: all, aggregation: { input: [{ type: "term", data: { field: "tags" } }] } } }, RESULT);
  found[query] = items.map(item => index.items[item.id].location);
}
console.log(JSON.stringify(found));
