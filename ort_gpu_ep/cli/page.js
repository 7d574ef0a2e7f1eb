"use strict";
// Draws the data of page.html. What comes from a model is set as text and never parsed as HTML.
const D = JSON.parse(document.getElementById("data").textContent);
const B = D.boxes, N = D.nodes, V = D.values, SIDE = { gpu: "GPU", host: "host", cpu: "CPU", input: "in", output: "out" };
const tree = document.getElementById("tree"), query = document.getElementById("q"), sides = [...document.querySelectorAll(".bar input[type=checkbox]")];
const AT_FIRST = 40, SHOWN = 60;        // rows on arrival; matches of a search up to which all of them are shown, whatever is closed

function el(tag, settings, ...inside) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name === "click") node.addEventListener("click", value); else node.setAttribute(name, value);
  }
  node.append(...inside.filter(item => item !== ""));
  return node;
}
function size(nbytes) {
  const k = nbytes ? Math.min(3, Math.floor(Math.log2(nbytes) / 10)) : 0;
  return k < 1 ? `${nbytes} B` : `${(nbytes / 2 ** (10 * k)).toFixed(1)} ${["KiB", "MiB", "GiB"][k - 1]}`;
}
// Of values, those of sizes that are not known apart.
function sizes(values) {
  const known = values.filter(v => v.nbytes);
  return known.length ? size(sum(known, v => v.nbytes)) + (known.length < values.length ? " + ?" : "") : values.length ? "? B" : "0 B";
}
const time = us => us >= 1e6 ? `${(us / 1e6).toFixed(2)} s` : us >= 1000 ? `${(us / 1000).toFixed(2)} ms` : `${us.toFixed(1)} us`;
const many = (n, what, plural = `${what}s`) => `${n.toLocaleString("en")} ${n === 1 ? what : plural}`;
const sum = (items, of) => items.reduce((total, item) => total + (of(item) || 0), 0);
const isBox = item => typeof item === "number";

// ---- what is in what: an item is the number of a box, or a block: its name, then its items

const around = new Map(), within = new Map(), boxOfNode = [];
function place(item, parent) {
  around.set(item, parent);
  const inner = isBox(item) ? (B[item].bodies || []).flatMap(g => D.trees[g]) : item.slice(1);
  within.set(item, [...isBox(item) ? [item] : [], ...inner.flatMap(i => place(i, item))]);
  return within.get(item);
}
D.roots.forEach(g => D.trees[g].forEach(item => place(item, null)));
B.forEach((b, k) => {
  const nodes = (b.nodes || []).map(n => N[n]);
  (b.nodes || []).forEach(n => boxOfNode[n] = k);
  b.reads = b.reads || [];
  b.writes = b.writes || [];
  b.ops = nodes.length ? nodes.map(n => n.op).join(" + ") : b.kernels ? b.kernels[0].name : b.name;
  b.text = [b.name, ...nodes.flatMap(n => [n.op, n.name, n.code || "", n.why || ""]), ...(b.kernels || []).flatMap(d => [d.name, d.shader || "", d.form || ""]),
    ...b.writes.flatMap(v => [V[v].name, V[v].type || ""])].join("\n").toLowerCase();
  b.up = b.side === "gpu" ? b.reads.filter(v => V[v].up) : [];
  b.down = b.writes.filter(v => V[v].down);
});
const slowest = Math.max(0, ...B.map(b => b.us || 0)), isTimed = B.some(b => b.us !== undefined);

// ---- rows

const rowOf = new Map();        // item -> its <details>, once that was made
let matches = null;             // numbers of boxes; null: all

function crossing(up, down) {
  const part = (values, sign, words) => values.length ? el("span", { class: "cross", title: `${many(values.length, "value")} copied ${words}` },
    `${sign} ${sizes(values.map(v => V[v]))}`) : "";
  return [part(up, "\u25B2", "from the host to the device"), part(down, "\u25BC", "from the device to the host")];
}
function timed(us) {
  if (us === undefined) return "";
  const bar = el("i", {});
  bar.style.width = `${100 * Math.min(1, us / (slowest || 1))}%`;
  return el("span", { class: "us" }, time(us), bar);
}
function rowFor(item, kind, summary, fill) {
  const row = el("details", { class: kind }, summary);
  row.item = item;
  row.fill = fill;
  row.addEventListener("toggle", () => { if (row.open) filled(row); redraw(); });
  rowOf.set(item, row);
  return row;
}
function filled(row) {
  const fill = row.fill;
  row.fill = null;
  if (fill) row.append(...fill());
}
function open(row) {
  row.open = true;
  filled(row);
}
function boxRow(k, path) {
  const b = B[k], plain = b.name.replace(/^\//, ""), isValue = b.side in { input: 1, output: 1 };
  const type = (b.writes.length ? b.writes : isValue ? b.reads : []).map(v => V[v].type || "").filter(t => t)[0] || "";
  return rowFor(k, `box ${b.side}`, el("summary", {}, el("span", { class: `badge ${b.side}` }, SIDE[b.side]), el("span", { class: "ops" }, b.ops),
    el("span", { class: "name" }, isValue ? "" : path && plain.startsWith(`${path}/`) ? plain.slice(path.length + 1) : b.name),
    el("span", { class: "type" }, type), ...crossing(b.up, b.down), timed(b.us)), () => [details(k)]);
}
function blockRow(item, path) {
  const [name, ...items] = item, all = within.get(item), where = name ? (path ? `${path}/${name}` : name) : path;
  const nodes = all.flatMap(k => B[k].nodes || []), share = el("span", { class: "share", "aria-hidden": "true" }), words = [];
  for (const side of ["gpu", "host", "cpu"]) {
    const part = nodes.filter(n => N[n].device === side).length;
    if (part) {
      const bar = el("i", {});
      bar.style.cssText = `flex:${part};background:var(--${side})`;
      share.append(bar);
      words.push(`${part} ${SIDE[side]}`);
    }
  }
  const first = B[all[0]].ops.split(" + ")[0], last = B[all[all.length - 1]].ops.split(" + ")[0];
  const values = side => [...new Set(all.flatMap(k => B[k][side]))];
  return rowFor(item, "block", el("summary", {}, el("span", { class: "ops" }, name || `${first} \u2026 ${last}`),
    el("span", { class: "name" }, `${many(nodes.length, "node")} in ${many(all.filter(k => B[k].nodes).length, "box", "boxes")}: ${words.join(", ")}`), share,
    ...crossing(values("up"), values("down")), timed(all.some(k => B[k].us !== undefined) ? sum(all, k => B[k].us) : undefined)),
  () => items.flatMap(i => rows(i, where)));
}
function rows(item, path) {
  if (matches && !within.get(item).some(k => matches.has(k))) return [];
  return [isBox(item) ? boxRow(item, path) : blockRow(item, path)];
}

function table(head, lines) {
  const is = h => h.num ? { class: "num" } : {};
  return el("table", {}, el("tr", {}, ...head.map(h => el("th", is(h), h.num || h))),
    ...lines.map(line => el("tr", {}, ...line.map((cell, c) => el("td", is(head[c]), cell)))));
}
const link = (k, text) => el("button", { class: "link", click: () => reveal(k) }, text || B[k].name);
const value = v => [el("span", { class: "name" }, V[v].name), V[v].type || "", V[v].nbytes ? size(V[v].nbytes) : "",
  V[v].up ? "\u25B2 to the device" : V[v].down ? "\u25BC to the host" : ""];

function details(k) {
  const b = B[k], here = el("div", { class: "in" });
  if (b.kernels) {
    here.append(el("h3", {}, many(b.kernels.length, "dispatch", "dispatches")), table(["kernel", "shader", "form", { num: isTimed ? "time" : " " }],
      b.kernels.map(d => [d.name, d.shader || "", d.form || "", d.us === undefined ? "" : time(d.us)])));
  } else if (b.side === "gpu" && !b.bodies) {
    here.append(el("p", { class: "dim" }, "No dispatch of its own: its result is a view, a copy, or a part of what another kernel writes."));
  } else if (b.side === "host") {
    here.append(el("p", { class: "dim" }, "Computed on the host, once for each set of sizes."));
  }
  for (const n of (b.nodes || []).map(n => N[n])) {
    here.append(el("h3", {}, `${n.op} `, el("span", { class: "name" }, n.name)));
    if (n.why) here.append(el("p", {}, el("b", {}, n.code), `: ${n.why}`));
    if (n.partition >= 0) here.append(el("p", { class: "dim" }, `partition ${n.partition}`));
    const lines = [...(n.attributes || []).map(pair => ["attribute", ...pair]), ...(n.constants || []).map(pair => ["constant", ...pair])];
    if (lines.length) here.append(table(["", "name", "value or type"], lines));
  }
  if (b.reads.length) {
    here.append(el("h3", {}, "reads"), table(["value", "type", { num: "bytes" }, "copied", "from"],
      b.reads.map(v => [...value(v), V[v].writer === undefined || V[v].writer < 0 ? "" : link(V[v].writer)])));
  }
  if (b.writes.length) {
    here.append(el("h3", {}, "writes"), table(["value", "type", { num: "bytes" }, "copied", "read by"],
      b.writes.map(v => [...value(v), el("span", {}, ...(V[v].readers || []).flatMap(r => [link(r), el("br", {})]))])));
  }
  for (const g of b.bodies || []) here.append(el("h3", {}, `body ${D.graphs[g]}`), ...D.trees[g].flatMap(item => rows(item, "")));
  return here;
}

// ---- lines between the rows that are visible

const NS = "http://www.w3.org/2000/svg", lines = document.createElementNS(NS, "svg");
lines.id = "lines";
lines.setAttribute("aria-hidden", "true");
let isWaiting = false, picked = null;
function redraw() {
  if (!isWaiting) requestAnimationFrame(draw);
  isWaiting = true;
}
function draw() {
  isWaiting = false;
  const shown = [...tree.querySelectorAll("summary")].filter(s => s.getClientRects().length), at = [], top = tree.getBoundingClientRect().top;
  const middle = shown.map(s => { const r = s.getBoundingClientRect(); return r.top - top + Math.min(14, r.height / 2); });
  shown.forEach((s, row) => {         // a box is in its own row, or in that of the closed one around it
    const { item, open: isOpen } = s.parentElement;
    if (isBox(item)) at[item] = row;
    if (!isOpen) within.get(item).forEach(k => at[k] = row);
    s.classList.remove("feeds", "reads");
  });
  const pairs = new Map();
  for (const v of V) {
    const from = v.writer === undefined ? undefined : at[v.writer];
    for (const r of from === undefined ? [] : v.readers || []) {
      if (at[r] === undefined || at[r] === from) continue;
      const crosses = (v.up && B[r].side === "gpu") || (v.down && B[r].side !== "gpu"), key = from * shown.length + at[r];
      pairs.set(key, { from, to: at[r], crosses: crosses || (pairs.has(key) && pairs.get(key).crosses) });
    }
  }
  const wide = lines.getBoundingClientRect().width - 1, drawn = [];
  for (const { from, to, crosses } of pairs.values()) {
    const isOn = shown[from] === picked || shown[to] === picked, x = wide - Math.min(wide - 3, 6 + 8 * Math.log2(Math.abs(to - from)));
    if (isOn) shown[shown[from] === picked ? to : from].classList.add(shown[from] === picked ? "reads" : "feeds");
    const path = document.createElementNS(NS, "path"), a = middle[from] + 3, b = middle[to] - 3;
    path.setAttribute("d", `M${wide} ${a}C${x} ${a} ${x} ${b} ${wide} ${b}`);
    path.setAttribute("class", `${crosses ? "x" : ""} ${isOn ? "on" : ""}`);
    drawn.push(path);
  }
  lines.style.height = `${tree.clientHeight}px`;
  lines.replaceChildren(...drawn);
}

// ---- opening, searching

function plant() {
  rowOf.clear();
  picked = null;
  tree.replaceChildren(lines, ...D.roots.flatMap(g => D.trees[g]).flatMap(item => rows(item, "")));
}
const blocks = from => [...from.querySelectorAll(":scope > details.block")];
function openSome(budget) {
  let count = tree.querySelectorAll("details").length, level = blocks(tree);
  while (level.length) {
    const next = [];
    for (const row of level) {
      if (count + row.item.length - 1 > budget) continue;
      open(row);
      count += row.item.length - 1;
      next.push(...blocks(row));
    }
    level = next;
  }
}
function openAll(row) {
  for (const block of blocks(row)) { open(block); openAll(block); }
}
function shown(item) {
  if (around.get(item) !== null) open(shown(around.get(item)));
  return rowOf.get(item);
}
function reveal(k) {
  if (matches && !matches.has(k)) {
    query.value = "";
    sides.forEach(c => c.checked = true);
    filter();
  }
  const row = shown(k);
  row.firstChild.focus();
  row.firstChild.scrollIntoView({ block: "center" });
}
function filter() {
  const words = query.value.toLowerCase().trim(), on = new Set(sides.filter(c => c.checked).map(c => c.value)), isAll = on.size === sides.length;
  const all = B.map((b, k) => k);
  matches = isAll && !words ? null : new Set(all.filter(k => (on.has(B[k].side) || (isAll && !(B[k].side in { gpu: 1, host: 1, cpu: 1 }))) && B[k].text.includes(words)));
  plant();
  if (!matches) openSome(AT_FIRST);
  else if (matches.size <= SHOWN) matches.forEach(k => { const row = shown(k); row.firstChild.classList.toggle("hit", words !== ""); });
  document.getElementById("count").textContent = `${sum(matches ? [...matches] : all, k => (B[k].nodes || []).length)} of ${many(N.length, "node")}`;
  redraw();
}

// ---- what stands above the tree

function list(title, isOpen, ...inside) {
  const row = el("details", isOpen ? { open: "" } : {}, el("summary", {}, title), ...inside);
  document.getElementById("lists").prepend(row);
}
const up = V.filter(v => v.up), down = V.filter(v => v.down), tiles = document.getElementById("tiles");
function tile(number, ...words) { tiles.append(el("div", { class: "tile" }, el("b", {}, number), ...words)); }
for (const side of ["gpu", "host", "cpu"]) {
  const nodes = N.filter(n => n.device === side).length, dispatches = sum(B, b => (b.kernels || []).length);
  tile(nodes.toLocaleString("en"), el("span", { class: `badge ${side}` }, SIDE[side]),
    side === "gpu" ? ` nodes in ${many(dispatches, "dispatch", "dispatches")}` : side === "host" ? " nodes, once for each set of sizes" : " nodes");
}
tile(`\u25B2 ${sizes(up)}`, `${many(up.length, "value")} to the device`);
tile(`\u25BC ${sizes(down)}`, `${many(down.length, "value")} to the host`);
if (isTimed) {
  tile(time(sum(B, b => b.us)), "in kernels and nodes that were timed");
  const order = B.map((b, k) => k).filter(k => B[k].us).sort((a, b) => B[b].us - B[a].us);
  list("Where the time goes", false, table(["kernel", "nodes", { num: "time" }, { num: "share" }], order.slice(0, 20).map(k =>
    [link(k), B[k].ops, time(B[k].us), `${(100 * B[k].us / sum(B, b => b.us)).toFixed(1)}%`])));
}
if (up.length + down.length) {
  list(`What is copied between host and device: ${many(up.length + down.length, "value")}`, false, table(["value", "type", { num: "bytes" }, "copied", "written by", "read by"],
    V.flatMap((v, k) => v.up || v.down ? [[...value(k), v.writer === undefined || v.writer < 0 ? "" : link(v.writer), el("span", {}, ...(v.readers || []).slice(0, 8).flatMap(r => [link(r), el("br", {})]))]] : [])));
}
const onCpu = N.filter(n => n.device === "cpu").length;
if (onCpu) {
  const codes = [...new Set(D.reasons.map(r => r.code))].map(code => D.reasons.filter(r => r.code === code));
  list(`Why ${many(onCpu, "node is", "nodes are")} on the CPU`, true, ...codes.flatMap(reasons => [
    el("h3", {}, `${reasons[0].code}: ${many(sum(reasons, r => r.nodes.length), "node")}`),
    ...reasons.map(r => el("details", { class: "why" }, el("summary", {}, el("b", {}, `${r.nodes.length} `), r.text),
      ...r.nodes.map(n => el("div", {}, `${N[n].op} `, link(boxOfNode[n], N[n].name)))))]));
}

sides.forEach(c => c.addEventListener("input", filter));
query.addEventListener("input", filter);
document.getElementById("open").addEventListener("click", () => { openAll(tree); redraw(); });
document.getElementById("close").addEventListener("click", () => { tree.querySelectorAll("details[open]").forEach(row => row.open = false); redraw(); });
tree.addEventListener("focusin", e => { picked = e.target.closest("summary") || picked; redraw(); });
addEventListener("resize", redraw);
addEventListener("keydown", e => {
  if (e.key === "/" && document.activeElement !== query) { e.preventDefault(); query.focus(); query.select(); return; }
  if (e.key === "Escape" && document.activeElement === query && query.value) { query.value = ""; filter(); return; }
  const here = document.activeElement && document.activeElement.closest("#tree summary");
  if (!here || e.altKey || e.ctrlKey || e.metaKey) return;
  const row = here.parentElement, all = [...tree.querySelectorAll("summary")].filter(s => s.getClientRects().length), step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
  const outer = row.parentElement.closest("#tree details");
  if (step) { const next = all[all.indexOf(here) + step]; if (next) next.focus(); }
  else if (e.key === "ArrowRight") { if (row.open) { const inner = row.querySelector("details > summary"); if (inner) inner.focus(); } else open(row); }
  else if (e.key === "ArrowLeft") { if (row.open) row.open = false; else if (outer) outer.firstChild.focus(); }
  else if (e.key === "Home") all[0].focus();
  else if (e.key === "End") all[all.length - 1].focus();
  else return;
  e.preventDefault();
});
if (location.hash) query.value = decodeURIComponent(location.hash.slice(1));
filter();
