// The map of one source: it draws rows, follows pointer and keys, and describes what is under them.

/** The part of a row that the pointer must be near to mean a cell that is too narrow to hit. */
const NEAR = 0.004;

class SourceMap {
  constructor(source, number, mode) {
    this.source = source;
    this.mode = mode;
    this.cellsOf = source.trees.map(() => null);
    this.picker = element("select", { "aria-label": "Tree" });
    source.trees.forEach((tree, at) => this.picker.append(element("option", { value: at, text: tree.cells.length ? tree.owner : `${tree.owner}: nothing` })));
    this.picker.hidden = source.trees.length < 2;
    const button = (text, label, action) => {
      const made = element("button", { type: "button", text, title: label, "aria-label": `${label} (${source.name})` });
      made.addEventListener("click", action);
      return made;
    };
    this.find = element("input", { type: "text", placeholder: "0x… address", "aria-label": `Address to find in ${source.name}`, spellcheck: "false" });
    const form = element("form", {}, this.find, element("button", { text: "Find" }));
    this.tools = element("div", { class: "tools" }, this.picker,
      button("+ row", "Zoom into the row", () => this.zoomIn()),
      button("− back", "Zoom out", () => this.zoomOut()),
      button("0 all", "Show all", () => this.showAll()), form);
    this.where = element("p", { class: "where" });
    this.facts = element("p", { class: "facts" });
    this.remarks = element("p", { class: "note", role: "note" });
    const label = `Map of ${source.name}: arrow keys choose a cell and a row, plus goes into a row, minus back, zero shows all`;
    this.map = element("div", { class: "map", id: `map-${number}`, tabindex: "0", role: "application", "aria-label": label, "aria-describedby": `detail-${number}` });
    this.detail = element("div", { class: "detail", id: `detail-${number}`, role: "status", "aria-live": "polite" });
    this.element = element("section", { class: "source", "aria-labelledby": `name-${number}` },
      element("h3", { id: `name-${number}`, text: source.name }), this.facts, this.tools, this.remarks, this.where, this.map, this.detail, this.notes());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.findText(this.find.value.trim());
    });
    this.picker.addEventListener("change", () => this.choose(Number(this.picker.value)));
    this.map.addEventListener("keydown", (event) => this.key(event));
    this.map.addEventListener("pointermove", (event) => this.point(event));
    this.map.addEventListener("click", (event) => this.point(event));
    this.map.addEventListener("dblclick", () => this.zoomIn());
    this.choose(0);
  }

  notes() {
    const { notes, more_trees: more } = this.source;
    const lines = [...notes];
    if (more) lines.push(`${plural(more, "tree is", "trees are")} not shown; the totals have them`);
    if (!lines.length) return null;
    return element("details", {}, element("summary", { text: plural(lines.length, "note", "notes") }), element("ul", {}, ...lines.map((text) => element("li", { text }))));
  }

  /** Shows a tree of the source. */
  choose(at) {
    this.at = at;
    this.picker.value = String(at);
    this.tree = this.source.trees[at];
    const tree = this.tree;
    if (!tree) {
      this.facts.textContent = "No tree was found.";
      return;
    }
    this.cellsOf[at] ||= tree.cells.map((cell) => readCell(tree, cell));
    this.cells = this.cellsOf[at];
    const totals = tree.totals;
    this.facts.textContent = `${tree.owner}: stage ${tree.stage}, ${size(tree.page_size)} pages, ${tree.va_bits} bits of address, root ${tree.root}, from ${tree.origin}. ` +
      `${size(totals.mapped_bytes)} mapped in ${plural(tree.ranges, "range", "ranges")}, ${plural(totals.tables, "table", "tables")}.`;
    const remarks = [];
    if (tree.cells.length < tree.ranges) {
      remarks.push(`${number(tree.ranges)} ranges are put together in ${number(tree.cells.length)} cells` +
        (tree.window ? `; ${number(tree.mixed)} of them sum up what lies in an aligned ${tree.window}` : ": neighbours with the same leaves and attributes") + ". Sums are exact.");
    }
    remarks.push(...tree.left_out);
    if (tree.more_left_out) remarks.push(`${number(tree.more_left_out)} more tables are left out.`);
    this.remarks.textContent = remarks.join(" ");
    this.remarks.hidden = !remarks.length;
    const here = this.source.findings.filter((finding) => finding.owner === tree.owner);
    this.found = new Map();
    for (const finding of here) {
      const offset = offsetIn(tree, finding.address);
      const index = offset === null ? -1 : firstAfter(this.cells, offset);
      if (index < 0 || index >= this.cells.length) continue;
      this.found.set(index, [...(this.found.get(index) || []), finding]);
    }
    this.cursor = 0;
    this.stack = [];
    const last = this.cells[this.cells.length - 1];
    this.window = last ? { low: this.cells[0].offset, high: last.end } : null;
    this.draw();
  }

  get all() {
    return this.stack.length ? this.stack[0] : this.window;
  }

  setMode(mode) {
    this.mode = mode;
    this.draw();
  }

  look(kind, access) {
    return this.mode === "leaf" ? lookOfLeaf(this.tree.kinds[kind]) : lookOfAccess(access);
  }

  /** Draws the rows of the window. */
  draw() {
    this.map.replaceChildren();
    if (!this.window) {
      this.map.append(element("p", { text: "Nothing is mapped." }));
      this.detail.replaceChildren();
      return;
    }
    this.rows = rowsOf(this.tree, this.cells, this.window.low, this.window.high);
    const { low, high } = this.window;
    this.where.textContent = this.stack.length ? `shown: ${address(this.tree, low)} – ${address(this.tree, high - 1)}` : "shown: all";
    this.bars = this.rows.map((row, at) => this.drawRow(row, at));
    this.mark();
  }

  drawRow(row, at) {
    if (row.gap) this.map.append(element("div", { class: "gap", text: `${size(row.gap)} not mapped` }));
    const bar = element("div", { class: "bar", "data-row": at });
    const label = element("span", { class: "label address", text: address(this.tree, row.low), title: "Zoom into this row" });
    label.addEventListener("click", () => {
      this.cursor = firstAfter(this.cells, row.low);
      this.zoomIn();
    });
    this.map.append(element("div", { class: "row" }, label, bar, element("span", { class: "size", text: size(row.high - row.low) })));
    const width = bar.clientWidth || 500;
    row.segments = segmentsOf(this.cells, row);
    row.segments.forEach((segment, k) => {
      const parts = this.shares(segment);
      const one = parts.length === 1 && parts[0].share > 0.999 ? parts[0].look : null;
      const classes = ["cell"];
      if (segment.thin || (segment.x2 - segment.x) * width < 4) classes.push("thin");
      const cell = element("span", { "data-segment": k });
      if (one) {
        if (LIGHT_LETTERS.has(one.colour)) classes.push("light");
        if (one.striped) classes.push("striped");
        if ((segment.x2 - segment.x) * width > one.letters.length * 7 + 6) cell.append(element("b", { text: one.letters }));
      }
      for (let i = segment.i; i < segment.j; i += 1) if (this.found.has(i)) classes.push("found");
      cell.className = classes.join(" ");
      const under = one ? ` --under: var(${one.colour});` : "";
      cell.style.cssText = `left: ${(segment.x * 100).toFixed(3)}%; width: ${((segment.x2 - segment.x) * 100).toFixed(3)}%; background: ${background(parts)};${under}`;
      bar.append(cell);
    });
    return bar;
  }

  /** What a segment consists of, by look: the share of each, the order of the legend. */
  shares(segment) {
    const looks = new Map();
    for (const [kind, access, bytes] of segment.parts.values()) {
      const look = this.look(kind, access);
      const old = looks.get(look.letters);
      looks.set(look.letters, { look, share: (old ? old.share : 0) + bytes / segment.bytes });
    }
    return [...looks.values()].sort((one, other) => one.look.order - other.look.order);
  }

  rowOf(index) {
    const cell = this.cells[index];
    const at = this.rows.findIndex((row) => row.low < cell.end && cell.offset < row.high);
    return at < 0 ? 0 : at;
  }

  /** Marks the chosen cell and describes it. */
  mark(under = null) {
    this.map.querySelectorAll(".at").forEach((one) => one.classList.remove("at"));
    const index = this.cursor;
    this.rows.forEach((row, at) => {
      const k = row.segments.findIndex((segment) => segment.i <= index && index < segment.j);
      if (k >= 0) this.bars[at].children[k].classList.add("at");
    });
    this.describe(index, under);
  }

  /** Describes a cell; `under` is the address under the pointer. */
  describe(index, under) {
    const cell = this.cells[index];
    const tree = this.tree;
    const list = element("dl");
    const line = (name, text, mono) => list.append(element("dt", { text: name }), element("dd", { text, class: mono ? "mono" : null }));
    line("range", `${address(tree, cell.offset)} – ${address(tree, cell.end - 1)}  (${size(cell.bytes)})`, true);
    if (cell.mixed) {
      const parts = cell.parts.map(([kind, access, bytes]) => `${lookOfLeaf(tree.kinds[kind]).words} ${access}: ${size(bytes)}`);
      const mapped = cell.parts.reduce((sum, part) => sum + part[2], 0);
      line("summed", `${number(cell.ranges)} ranges: ${parts.join("; ")}${mapped < cell.bytes ? `; ${size(cell.bytes - mapped)} not mapped` : ""}`);
    } else {
      const kind = tree.kinds[cell.kind];
      line("leaves", `${number(cell.bytes / kind.bytes)} × ${lookOfLeaf(kind).words}`);
      line("attributes", `${cell.words}  (${cell.parts[0][1]}: ${lookOfAccess(cell.parts[0][1]).words})`, true);
      if (cell.ranges > 1) line("output", `${number(cell.ranges)} ranges of memory, the first at ${physical(cell.output)}`, true);
      else line("output", `${physical(cell.output)} – ${physical(cell.output + cell.bytes - 1)}`, true);
      if (under !== null && cell.ranges === 1) line("pointer", `${address(tree, under)} → ${physical(cell.output + under - cell.offset)}`, true);
    }
    for (const finding of this.found.get(index) || []) line(finding.severity, `${finding.rule}: ${finding.text}`);
    this.detail.replaceChildren(list);
  }

  /** Chooses the cell under the pointer. */
  point(event) {
    const bar = event.target.closest(".bar");
    if (!bar) return;
    const row = this.rows[Number(bar.dataset.row)];
    const box = bar.getBoundingClientRect();
    const x = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1 - 1e-9);
    const offset = row.low + Math.floor((row.high - row.low) * x);
    let index = firstAfter(this.cells, offset);
    const far = (i) => (this.cells[i].offset > offset ? this.cells[i].offset - offset : Math.max(offset - this.cells[i].end + 1, 0));
    if (index > 0 && (index === this.cells.length || far(index - 1) < far(index))) index -= 1;
    // A cell of a pixel or less is hard to hit, and one with a finding worth it.
    const around = NEAR * (row.high - row.low);
    for (const i of this.found.keys()) {
      const narrow = this.cells[i].bytes < around;
      if (narrow && far(i) < around && far(i) > 0 && this.cells[index].bytes > around) index = i;
    }
    if (far(index) > around) {
      const page = Math.floor(offset / this.tree.page_size) * this.tree.page_size;
      this.detail.replaceChildren(element("p", { text: `${address(this.tree, page)} is not mapped.` }));
      return;
    }
    this.cursor = index;
    const inside = this.cells[index].offset <= offset && offset < this.cells[index].end;
    this.mark(inside ? Math.floor(offset / this.tree.page_size) * this.tree.page_size : null);
  }

  /** The cells that the window has: from the first up to the second. */
  seen() {
    const first = firstAfter(this.cells, this.window.low);
    const end = firstAfter(this.cells, this.window.high - 1);
    const inside = end < this.cells.length && this.cells[end].offset < this.window.high;
    return [first, inside ? end : end - 1];
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !this.window) return;
    const [first, last] = this.seen();
    const to = (index) => {
      this.cursor = Math.min(Math.max(index, first), last);
      this.mark();
    };
    const row = this.rows[this.rowOf(this.cursor)];
    const actions = {
      ArrowLeft: () => to(this.cursor - 1),
      ArrowRight: () => to(this.cursor + 1),
      ArrowUp: () => this.toRow(-1, to),
      ArrowDown: () => this.toRow(1, to),
      Home: () => to(firstAfter(this.cells, row.low)),
      End: () => to(row.segments[row.segments.length - 1].j - 1),
      Enter: () => this.zoomIn(),
      "+": () => this.zoomIn(),
      "=": () => this.zoomIn(),
      "-": () => this.zoomOut(),
      0: () => this.showAll(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  /** To the cell in the row above or below that is nearest to the same place. */
  toRow(by, to) {
    const at = this.rowOf(this.cursor);
    const next = this.rows[at + by];
    if (!next) return;
    const row = this.rows[at];
    const cell = this.cells[this.cursor];
    const x = (Math.min(Math.max(cell.offset, row.low), row.high) - row.low) / (row.high - row.low);
    const offset = next.low + x * (next.high - next.low);
    const segment = next.segments.find((one) => one.x2 > x) || next.segments[next.segments.length - 1];
    to(Math.min(Math.max(firstAfter(this.cells, offset), segment.i), segment.j - 1));
  }

  go(window) {
    this.stack.push(this.window);
    this.window = window;
    this.draw();
  }

  /** Into the row of the chosen cell, or where that is all that is seen, to its surroundings. */
  zoomIn() {
    if (!this.window) return;
    const row = this.rows[this.rowOf(this.cursor)];
    const cell = this.cells[this.cursor];
    const narrower = ({ low, high }) => high - low < (this.window.high - this.window.low) * 0.9;
    const around = {
      low: Math.max(this.window.low, cell.offset - 2 * cell.bytes),
      high: Math.min(this.window.high, cell.end + 2 * cell.bytes),
    };
    const next = [{ low: row.low, high: row.high }, around].find(narrower);
    if (next) this.go(next);
  }

  zoomOut() {
    if (!this.stack.length) return;
    this.window = this.stack.pop();
    this.draw();
  }

  showAll() {
    if (!this.window) return;
    this.window = this.all;
    this.stack = [];
    this.draw();
  }

  /** Goes to an address: its row, the cell, the focus. Returns whether it is mapped. */
  goTo(text) {
    const offset = offsetIn(this.tree, text);
    if (offset === null || !this.window) return false;
    this.showAll();
    const index = Math.min(firstAfter(this.cells, offset), this.cells.length - 1);
    this.cursor = index;
    for (let depth = 0; depth < 6 && this.narrow(); depth += 1) this.zoomIn();
    this.mark();
    this.map.focus({ preventScroll: true });
    this.map.scrollIntoView({ block: "center" });
    const cell = this.cells[index];
    return cell.offset <= offset && offset < cell.end;
  }

  /** Whether the chosen cell is too narrow to be seen well. */
  narrow() {
    const row = this.rows[this.rowOf(this.cursor)];
    return this.cells[this.cursor].bytes < (row.high - row.low) * 0.01;
  }

  findText(text) {
    let value = text;
    if (/^[0-9a-f_]+$/i.test(text)) value = `0x${text}`;
    value = value.replace(/_/g, "");
    if (!/^0x[0-9a-f]{1,16}$/i.test(value)) {
      this.detail.replaceChildren(element("p", { text: `${text} is not an address: give hexadecimal digits, such as ${address(this.tree, 0)}` }));
      return;
    }
    const at = this.source.trees.findIndex((tree) => offsetIn(tree, value) !== null);
    if (offsetIn(this.tree, value) === null && at >= 0) this.choose(at);
    if (!this.goTo(value)) this.detail.prepend(element("p", { class: "warning", text: `${value} is not mapped here. The nearest cell:` }));
  }
}
