"use strict";
// The page holds its data as JSON; what is not looked at is never parsed or drawn.
const byId = id => document.getElementById(id);
const parsed = new Map();
// Data by name; what is compressed has to be loaded before.
function data(name) {
  if (!parsed.has(name)) parsed.set(name, JSON.parse(byId("data-" + name).textContent));
  return parsed.get(name);
}
async function load(...names) {
  for (const name of names) {
    const element = byId("data-" + name);
    if (parsed.has(name) || element.type !== "application/gzip") continue;
    const packed = Uint8Array.from(atob(element.textContent), letter => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    parsed.set(name, await new Response(stream).json());
  }
}
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}
const counted = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
const base = path => path.slice(path.lastIndexOf("/") + 1);
function bytes(count) {
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (count >= unit) return (count / unit).toPrecision(3) + " " + name;
  return count + " B";
}
function micros(value) {
  if (value === null || value === undefined) return "";
  if (value >= 1e6) return (value / 1e6).toPrecision(3) + " s";
  if (value >= 1e3) return (value / 1e3).toPrecision(3) + " ms";
  return value >= 1 ? value.toPrecision(3) + " µs" : (value * 1e3).toFixed(0) + " ns";
}

// -- tips -----------------------------------------------------------------------------------------
const tip = make("div", {id: "tip", hidden: ""});
document.body.append(tip);
document.addEventListener("mousemove", event => {
  const owner = event.target.closest && event.target.closest("[data-tip]");
  tip.hidden = !owner;
  if (!owner) return;
  tip.textContent = owner.dataset.tip;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
});

// -- code in colour -------------------------------------------------------------------------------
const TOKEN = /(#.*$|\/\/.*$)|('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\b(def|for|in|if|else|elif|return|while|import|from|with|as|class|lambda|not|and|or|is|None|True|False|void|static|const|auto|int|float|double|bool|char|extern|inline|using|namespace|template)\b|\b(bf16|f16|f32|f64|i8|i16|i32|i64|u8|bool)(?=\[)/g;
function coloured(element, text) {
  let last = 0;
  for (const match of text.length < 2000 ? text.matchAll(TOKEN) : []) {
    if (match.index > last) element.append(text.slice(last, match.index));
    const kind = match[1] ? "c" : match[2] ? "s" : match[3] ? "k" : "t";
    element.append(make("span", {class: kind}, match[0]));
    last = match.index + match[0].length;
  }
  if (last < text.length) element.append(text.slice(last));
  return element;
}
document.querySelectorAll("#functions .code code").forEach(code => {
  const text = code.textContent;
  code.textContent = "";
  coloured(code, text);
});

// -- timeline -------------------------------------------------------------------------------------
function timeline() {
  const chart = byId("chart"), spans = data("overview").spans;
  const end = Math.max(...spans.map(span => span[2] + span[3]), 1e-9), start = Math.min(...spans.map(span => span[2]), end);
  let view = [start, end];
  function draw() {
    chart.textContent = "";
    const width = chart.clientWidth, scale = width / (view[1] - view[0]);
    const step = 10 ** Math.floor(Math.log10((view[1] - view[0]) / 4));
    const unit = [1, 2, 5, 10].map(k => k * step).find(s => (view[1] - view[0]) / s <= 9);
    for (let t = Math.ceil(view[0] / unit) * unit; t < view[1]; t += unit)
      chart.append(make("div", {class: "tick", style: `left:${(t - view[0]) * scale}px`}, micros(t * 1e6) || "0"));
    for (const [name, level, at, seconds, frame, graph] of spans) {
      const left = (at - view[0]) * scale, size = seconds * scale;
      if (left + size < 0 || left > width || size < 0.4) continue;
      const shown = Math.max(left, 0);
      chart.append(make("div", {
        class: `bar l${level}`, style: `left:${shown}px;width:${Math.max(Math.min(left + size, width) - shown, 1)}px;top:${8 + level * 34}px`,
        "data-tip": `${name}\n${micros(seconds * 1e6)}, ${(100 * seconds / (end - start)).toFixed(1)} % of all`,
        "data-target": graph !== null ? "graph-" + graph : "frame-" + frame,
      }, size > 26 ? name : ""));
    }
  }
  let from = null, zone = null;
  const at = event => event.clientX - chart.getBoundingClientRect().left;
  chart.addEventListener("mousedown", event => { from = at(event); zone = make("div", {class: "zoom"}); chart.append(zone); });
  addEventListener("mousemove", event => {
    if (from === null) return;
    zone.style.left = Math.min(from, at(event)) + "px";
    zone.style.width = Math.abs(at(event) - from) + "px";
  });
  addEventListener("mouseup", event => {
    if (from === null) return;
    const [a, b] = [Math.min(from, at(event)), Math.max(from, at(event))], scale = (view[1] - view[0]) / chart.clientWidth;
    from = null;
    zone.remove();
    if (b - a > 6) { view = [view[0] + a * scale, view[0] + b * scale]; draw(); }
    else if (event.target.dataset && event.target.dataset.target) location.hash = event.target.dataset.target;
  });
  chart.addEventListener("dblclick", () => { view = [start, end]; draw(); });
  addEventListener("resize", draw);
  draw();
}
byId("chrome").addEventListener("click", () => {
  const rows = ["frames", "graphs", "stages"];
  const events = rows.map((name, tid) => ({name: "thread_name", ph: "M", pid: 0, tid, args: {name}}));
  for (const [name, level, at, seconds, frame, graph] of data("overview").spans)
    events.push({name, cat: rows[level], ph: "X", ts: at * 1e6, dur: seconds * 1e6, pid: 0, tid: level, args: {frame, graph}});
  const blob = new Blob([JSON.stringify({traceEvents: events})], {type: "application/json"});
  const link = make("a", {href: URL.createObjectURL(blob), download: "compilation.trace.json"});
  link.click();
});

// -- tables ---------------------------------------------------------------------------------------
const MOST_ROWS = 400;
// columns: [title, text of a row, number to sort by or null]
function table(rows, columns, options = {}) {
  const box = make("div"), body = make("tbody"), note = make("span", {class: "quiet"});
  let order = null, descending = true, wanted = "";
  function fill() {
    let shown = rows;
    if (wanted) shown = shown.filter(row => columns.some(column => String(column.search ? column.search(row) : column.text(row)).toLowerCase().includes(wanted)));
    if (order) shown = [...shown].sort((a, b) => (descending ? -1 : 1) * ((order.value(a) ?? -1) - (order.value(b) ?? -1)));
    body.textContent = "";
    for (const row of shown.slice(0, MOST_ROWS)) {
      const line = make("tr", options.row ? options.row(row) : {});
      for (const column of columns) {
        const content = column.cell ? column.cell(row) : column.text(row);
        line.append(make("td", {class: column.value && !column.cell ? "number" : column.class || ""}, content ?? ""));
      }
      body.append(line);
    }
    note.textContent = shown.length > MOST_ROWS ? `${MOST_ROWS} of ${shown.length} rows; filter to see others` : counted(shown.length, "row");
  }
  const head = make("tr", {}, ...columns.map(column => make("th", {
    class: column.value ? "sort" + (column.cell ? "" : " number") : "", title: column.title || null,
    onclick: () => { if (!column.value) return; descending = order === column ? !descending : true; order = column; fill(); },
  }, column.name)));
  const filter = make("input", {class: "filter", type: "search", placeholder: "filter", oninput: event => { wanted = event.target.value.toLowerCase(); fill(); }});
  box.append(make("div", {class: "row"}, filter, note), make("div", {class: "scroll"}, make("table", {}, make("thead", {}, head), body)));
  order = options.order ? columns[options.order] : null;
  fill();
  return box;
}

// -- guards ---------------------------------------------------------------------------------------
document.querySelectorAll("button.guards").forEach(button => button.addEventListener("click", () => {
  const list = button.closest("article").querySelector(".guard-list");
  const isShown = list.dataset.frame === button.dataset.frame && list.firstChild;
  list.textContent = "";
  list.dataset.frame = button.dataset.frame;
  if (isShown) return;
  showGuards(list, button.dataset.frame);
}));
async function showGuards(list, frame) {
  await load("guards");
  const guards = data("guards"), files = guards.files, own = guards.frames[frame];
  const rows = own.rows.map((row, index) => [...guards.rows[row], own.nanoseconds ? own.nanoseconds[index] : null]);
  const columns = [
    {name: "value", text: row => row[0], cell: row => make("code", {}, row[0])},
    {name: "has to hold", text: row => row[1]},
    {name: "asked for by", text: row => row[2] ? `${base(files[row[2][0]])}:${row[2][1]}` : ""},
  ];
  if (rows.some(row => row[3] !== null))
    columns.push({name: "alone", title: "time of a check of this guard alone, with the way to its value", text: row => row[3] === null ? "" : row[3] + " ns", value: row => row[3]});
  list.append(make("h3", {}, "Guards"), table(rows, columns));
}

// -- graphs: stages side by side ------------------------------------------------------------------
const MOST_OPEN = 1500, LONGEST = 240;
class Links {
  // Elements by the number of the user's line that they come from.
  constructor() { this.elements = new Map(); this.hits = []; this.pin = null; }
  add(element, places) {
    element.dataset.p = places.join(",");
    for (const place of places) {
      if (!this.elements.has(place)) this.elements.set(place, []);
      this.elements.get(place).push(element);
    }
  }
  show(places) {
    this.hits.forEach(element => element.classList.remove("hit"));
    this.hits = places.flatMap(place => this.elements.get(place) || []);
    this.hits.forEach(element => element.classList.add("hit"));
  }
  fix(places, origin) {
    document.querySelectorAll(".pinned").forEach(element => element.classList.remove("pinned"));
    this.pin = places;
    this.show(places);
    const columns = new Set();
    for (const element of this.hits) {
      element.classList.add("pinned");
      const column = element.closest(".text");
      if (columns.has(column) || (origin && column === origin.closest(".text"))) continue;
      columns.add(column);
      column.scrollTop = element.offsetTop - column.clientHeight / 3;
    }
  }
  listen(box) {
    const places = event => { const owner = event.target.closest("[data-p]"); return owner && owner.dataset.p ? [owner, owner.dataset.p.split(",").map(Number)] : null; };
    box.addEventListener("mouseover", event => { const found = places(event); if (found) this.show(found[1]); });
    box.addEventListener("mouseleave", () => this.show(this.pin || []));
    box.addEventListener("click", event => { const found = places(event); if (found && !event.target.closest("summary")) this.fix(found[1], found[0]); });
  }
}
function column(title, detail) {
  const text = make("div", {class: "text", tabindex: "0"});
  return [make("div", {class: "column"}, make("h4", {}, title, make("small", {}, detail)), text), text];
}
function addLines(box, lines, places, links, first = null) {
  lines.forEach((line, index) => {
    const element = make("div", {class: "l"});
    if (first !== null) element.append(make("span", {class: "n"}, String(first[index])));
    coloured(element, line.length > LONGEST ? line.slice(0, LONGEST) + " …" : line || " ");
    if (line.length > LONGEST) element.title = line;
    if (places && places[index] >= 0) { links.add(element, [places[index]]); element.classList.add("linked"); }
    box.append(element);
  });
}
function kernelColumn(title, program, position, links) {
  const kernels = program.kernels, total = kernels.reduce((sum, kernel) => sum + kernel[position].split("\n").length, 0);
  const [box, text] = column(title, `${counted(kernels.length, "kernel")}, ${counted(total, "line")}`);
  for (const kernel of kernels) {
    const summary = make("summary", {}, kernel[0], " ", make("span", {}, kernel[1]));
    const details = make("details", {class: "kernel", "data-kernel": kernel[0]}, summary);
    links.add(details, kernel[2]);
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) addLines(details, kernel[position].split("\n")); });
    details.open = total <= MOST_OPEN;
    text.append(details);
  }
  return box;
}
function stagesPanel(graph, panel, state) {
  const links = new Links(), boxes = [], program = graph.programs.find(each => each.direction === state.direction) || graph.programs[0];
  const [code, codeText] = column("Your code", counted(graph.places.length, "line") + " with nodes");
  for (const region of graph.regions) {
    codeText.append(make("h5", {title: region.file}, `${base(region.file)}${region.title ? " · " + region.title : ""}`));
    addLines(codeText, region.lines, region.places, links, region.numbers);
  }
  boxes.push(["Your code", code]);
  for (const text of graph.texts) {
    const isOther = ["Forward", "Backward"].includes(text.title) && text.title.toLowerCase() !== (program || {}).direction;
    if (isOther) continue;
    const [box, lines] = column(text.title, counted(text.lines.length, "line"));
    addLines(lines, text.lines, text.places, links);
    boxes.push([text.title, box]);
  }
  if (program) {
    if (program.prims) {
      const [box, lines] = column("Prims", counted(program.prims.lines.length, "line"));
      addLines(lines, program.prims.lines, program.prims.places, links);
      boxes.push(["Prims", box]);
    }
    boxes.push(["Loops", kernelColumn("Loops", program, 3, links)], ["Kernels", kernelColumn("Kernels", program, 4, links)]);
  }
  const bar = make("div", {class: "row"}), columns = make("div", {class: "columns"});
  if (graph.programs.length > 1) for (const each of graph.programs)
    bar.append(make("button", {"aria-pressed": String(each === program), onclick: () => { state.direction = each.direction; state.draw(); }}, each.direction));
  bar.append(make("span", {class: "quiet"}, "columns:"));
  state.hidden = state.hidden || new Set(["Forward", "Backward", ...graph.programs.length > 1 ? [] : ["Functional"]]);
  for (const [name, box] of boxes) {
    box.hidden = state.hidden.has(name);
    box.style.display = box.hidden ? "none" : "";
    const toggle = make("button", {"aria-pressed": String(!box.hidden), onclick: () => {
      if (state.hidden.has(name)) state.hidden.delete(name); else state.hidden.add(name);
      box.style.display = state.hidden.has(name) ? "none" : "";
      toggle.setAttribute("aria-pressed", String(!state.hidden.has(name)));
    }}, name);
    bar.append(toggle);
    columns.append(box);
  }
  bar.append(make("button", {onclick: () => document.body.classList.toggle("wide")}, "⇔ wide"));
  bar.append(make("span", {class: "quiet"}, "hover a line to see what it became and where it came from; click to keep it"));
  links.listen(columns);
  state.links = links;
  panel.append(bar, columns);
}

// -- graphs: the other panels ---------------------------------------------------------------------
function placesColumn(graph, get) {
  return {name: "your code", text: row => get(row).map(place => lineOf(graph, place)).join(" "), cell: row => {
    const [first, ...others] = get(row);
    if (first === undefined) return "";
    const more = others.length ? `  and ${others.length} more` : "";
    return make("code", {class: "one", "data-tip": get(row).map(place => lineOf(graph, place)).join("\n")}, lineOf(graph, first) + more);
  }};
}
const lineOf = (graph, place) => { const [file, line, code] = graph.places[place]; return `${base(file)}:${line}  ${code}`; };
function callsPanel(graph, panel) {
  const rows = graph.programs.flatMap(program => program.calls.map((call, index) => ({program, call, index})));
  const longest = Math.max(...rows.map(({call}) => call[8] ?? call[7] ?? 0), 1e-9), hasProfile = rows.some(({call}) => call[8] !== null);
  const columns = [
    {name: "#", class: "tight", text: row => `${row.program.direction} ${row.index}`},
    {name: "call", class: "tight", text: row => row.call[0], cell: row => make("code", {}, row.call[0].replace(/\.default$/, ""))},
    {name: "computes", text: row => row.call[1] === null ? "" : row.call[2]},
    placesColumn(graph, row => row.call[3]),
    {name: "reads", text: row => bytes(row.call[4]), value: row => row.call[4]},
    {name: "writes", text: row => bytes(row.call[5]), value: row => row.call[5]},
    {name: "estimate", title: "at the machine's limits", text: row => micros(row.call[7]), value: row => row.call[7]},
  ];
  if (hasProfile) columns.push(
    {name: "measured", title: "mean of all calls", text: row => micros(row.call[8]), value: row => row.call[8]},
    {name: "of limit", title: "estimate / fastest call; above 100 % the data was in the cache", text: row => row.call[10] === null ? "" : Math.round(100 * row.call[10]) + " %", value: row => row.call[10]});
  columns.push({name: "", text: () => "", class: "bar-cell", cell: row => make("i", {style: `width:${Math.round(100 * (row.call[8] ?? row.call[7] ?? 0) / longest)}%`})});
  panel.append(table(rows, columns, {order: hasProfile ? 7 : 6}));
}
function fusionPanel(graph, panel) {
  const rows = graph.programs.flatMap(program => program.decisions.map(decision => [program.direction, ...decision]));
  const fused = rows.filter(row => row[6]), saved = fused.reduce((sum, row) => sum + row[8], 0);
  panel.append(make("p", {class: "quiet"}, `${fused.length} of ${rows.length} considered pairs were fused, which saves ${bytes(saved)} of memory traffic per call.`));
  panel.append(table(rows, [
    {name: "", text: row => row[6] ? "fused" : "apart", cell: row => make("span", {class: "tag " + (row[6] ? "fused" : "")}, row[6] ? "fused" : "apart")},
    {name: "program", text: row => row[0]},
    {name: "first", text: row => row[2], search: row => row[1] + row[2], cell: row => make("code", {class: "one", "data-tip": row[1]}, row[2])},
    {name: "second", text: row => row[4], search: row => row[3] + row[4], cell: row => make("code", {class: "one", "data-tip": row[3]}, row[4])},
    {name: "why", text: row => row[7]},
    {name: "saves", title: "bytes of memory traffic", text: row => bytes(row[8]), value: row => row[8]},
    placesColumn(graph, row => row[5]),
  ], {order: 5}));
}
const SVG = "http://www.w3.org/2000/svg";
function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
function memoryPanel(graph, panel) {
  for (const program of graph.programs) {
    const drawn = program.buffers.filter(buffer => buffer[8] !== null && buffer[6] > buffer[5]), isGiven = buffer => ["input", "constant"].includes(buffer[1]);
    const own = drawn.filter(buffer => !isGiven(buffer)), total = buffers => buffers.reduce((sum, buffer) => sum + buffer[4], 0);
    const given = total(program.buffers.filter(isGiven)), peak = program.peak + total(drawn.filter(isGiven));
    const calls = Math.max(program.calls.length, 1), top = Math.max(...drawn.map(buffer => buffer[8] + buffer[4]), peak, 1);
    const reused = own.filter(buffer => buffer[7] !== buffer[0]);
    panel.append(make("h3", {}, program.direction), make("p", {class: "quiet"},
      `${counted(own.length, "buffer")}, ${reused.length} in the memory of dead ones (saves ${bytes(total(reused))} of allocations); peak ${bytes(program.peak)} beyond ${bytes(given)} of inputs and constants.`));
    const svg = shape("svg", {class: "memory", viewBox: "0 0 1000 380", preserveAspectRatio: "none"});
    const x = call => 60 + 930 * call / calls, y = offset => 350 - 335 * offset / top;
    for (let k = 0; k <= 4; k++) {
      svg.append(shape("line", {class: "axis", x1: 60, x2: 990, y1: y(top * k / 4), y2: y(top * k / 4)}));
      svg.append(shape("text", {x: 4, y: y(top * k / 4) + 4}, bytes(Math.round(top * k / 4))));
      svg.append(shape("text", {x: x(calls * k / 4), y: 370}, k === 4 ? "" : `call ${Math.round(calls * k / 4)}`));
    }
    for (const [name, kind, dtype, sizes, size, birth, death, memory, offset] of drawn) {
      const rect = shape("rect", {class: memory !== name ? "reuse" : kind, x: x(birth), y: y(offset + size), width: Math.max(x(death) - x(birth), 0.5), height: Math.max(y(offset) - y(offset + size), 0.4)});
      rect.dataset.tip = `${name}: ${dtype}${sizes}, ${bytes(size)}\n${kind}, from call ${birth} to call ${death}` + (memory !== name ? `\nin the memory of ${memory}` : "");
      svg.append(rect);
    }
    svg.append(shape("line", {class: "peak", x1: 60, x2: 990, y1: y(peak), y2: y(peak)}));
    panel.append(svg);
    panel.append(make("div", {class: "legend"}, make("span", {class: "key graph"}), "intermediate ", make("span", {class: "key frame"}), "result or saved for backward ", make("span", {class: "key stage"}), "in the memory of a dead buffer ", make("span", {class: "key never"}), "input that is freed early ", make("span", {}, "dashed line: planned peak")));
  }
}
function hostPanel(graph, panel) {
  for (const program of graph.programs) {
    if (!program.host) continue;
    const [box, text] = column(`Host program, ${program.direction}`, counted(program.host.lines.length, "line"));
    addLines(text, program.host.lines);
    box.style.maxHeight = "60vh";
    panel.append(box);
  }
}
const PANELS = [["Stages side by side", stagesPanel], ["Kernels and calls", callsPanel], ["Fusion", fusionPanel], ["Memory", memoryPanel], ["Host program", hostPanel]];
const states = new Map();
async function openGraph(article, tab) {
  article.dataset.open = "yes";
  await load("graph-" + article.dataset.graph);
  const id = article.dataset.graph, graph = data("graph-" + id);
  if (!states.has(id)) states.set(id, {tab: 0});
  const state = states.get(id), panel = article.querySelector(".panel"), tabs = article.querySelector(".tabs");
  if (tab !== undefined) state.tab = tab;
  state.draw = () => {
    panel.textContent = tabs.textContent = "";
    PANELS.forEach(([name], index) => {
      if (index > 0 && !graph.programs.length) return;
      tabs.append(make("button", {role: "tab", "aria-selected": String(index === state.tab), onclick: () => { state.tab = index; state.draw(); }}, name));
    });
    PANELS[state.tab][1](graph, panel, state);
  };
  state.draw();
  return state;
}
const articles = [...document.querySelectorAll("article.graph")];
for (const article of articles) article.querySelector(".tabs").append(make("button", {onclick: () => openGraph(article)}, "Show the stages"));
const watcher = new IntersectionObserver(entries => entries.forEach(entry => {
  if (entry.isIntersecting && !entry.target.dataset.open && states.size < 3) openGraph(entry.target);
}), {rootMargin: "100px"});
articles.forEach(article => watcher.observe(article));

async function follow() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target || !target.matches("article.graph")) return;
  if (!target.dataset.open) await openGraph(target);
  target.scrollIntoView({behavior: "instant"});
}
addEventListener("hashchange", follow);
follow();

// -- search ---------------------------------------------------------------------------------------
const MOST_RESULTS = 60;
function* entries() {
  for (const found of data("overview").functions)
    for (const [index, line] of found.lines.entries())
      yield ["source", `${base(found.file)}:${found.first + index}`, line.trim(), () => { location.hash = found.anchor; }];
  for (const article of articles) {
    const id = article.dataset.graph, graph = data("graph-" + id);
    for (const text of graph.texts)
      for (const [index, line] of text.lines.entries()) yield ["node", `graph ${id}, ${text.title.toLowerCase()}`, line.trim(), () => reveal(article, text.places[index])];
    for (const program of graph.programs) {
      for (const kernel of program.kernels) yield ["kernel", `graph ${id}, ${program.direction}`, `${kernel[0]} ${kernel[1]}`, () => revealKernel(article, program, kernel)];
      for (const [index, line] of (program.prims ? program.prims.lines : []).entries()) yield ["node", `graph ${id}, prims`, line.trim(), () => reveal(article, program.prims.places[index])];
      for (const decision of program.decisions) yield ["fusion", `graph ${id}, fusion`, `${decision[1]} and ${decision[3]}: ${decision[6]}`, async () => { await openGraph(article, 2); article.scrollIntoView(); }];
    }
  }
  for (const button of document.querySelectorAll("button.guards")) {
    const guards = data("guards");
    for (const row of guards.frames[button.dataset.frame].rows.map(index => guards.rows[index])) yield ["guard", "guard", `${row[0]} ${row[1]}`, () => { button.click(); button.scrollIntoView({block: "start"}); }];
  }
}
async function reveal(article, place) {
  const state = await openGraph(article, 0);
  article.scrollIntoView();
  if (place >= 0) state.links.fix([place]);
}
async function revealKernel(article, program, kernel) {
  const state = await openGraph(article, 0);
  state.direction = program.direction;
  state.draw();
  article.scrollIntoView();
  const found = [...article.querySelectorAll("details.kernel")].filter(element => element.dataset.kernel === kernel[0]);
  found.forEach(element => { element.open = true; const text = element.closest(".text"); text.scrollTop = element.offsetTop; });
  state.links.fix(kernel[2], found[0]);
}
const search = byId("search"), results = byId("results");
let waiting = 0;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    await load("guards", ...articles.map(article => "graph-" + article.dataset.graph));
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    results.textContent = "";
    results.hidden = !words.length;
    if (!words.length) return;
    let count = 0;
    for (const [, where, text, go] of entries()) {
      const lower = (where + " " + text).toLowerCase();
      if (!words.every(word => lower.includes(word))) continue;
      if (++count > MOST_RESULTS) break;
      results.append(make("button", {onclick: () => { results.hidden = true; go(); }}, make("span", {}, where), make("code", {title: text}, text.slice(0, 200))));
    }
    if (!count) results.append(make("div", {class: "quiet"}, "nothing found"));
    if (count > MOST_RESULTS) results.append(make("div", {class: "quiet"}, `the first ${MOST_RESULTS}; more words find fewer`));
  }, 120);
});
document.addEventListener("keydown", event => {
  if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
  if (event.key === "Escape") { results.hidden = true; search.blur(); }
});
document.addEventListener("click", event => { if (!event.target.closest(".search")) results.hidden = true; });

// -- where the reader is --------------------------------------------------------------------------
const here = new IntersectionObserver(found => found.forEach(entry => {
  const link = document.querySelector(`nav a[href="#${CSS.escape(entry.target.id)}"]`) || document.querySelector(`nav a[href="#${entry.target.id}"]`);
  if (link) link.classList.toggle("here", entry.isIntersecting);
}), {rootMargin: "-60px 0px -75% 0px"});
document.querySelectorAll("main > section, main article").forEach(part => here.observe(part));
timeline();
