// Charts of totals, each with its numbers in a table beside it.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function table(caption, heads, rows) {
  const head = element("tr", {}, ...heads.map(([text, kind]) => element("th", { text, class: kind, scope: "col" })));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, at) =>
    cell instanceof Node ? element("td", {}, cell) : element("td", { text: cell, class: heads[at][1] }))));
  return element("div", { class: "scroll" }, element("table", { "aria-label": caption }, element("thead", {}, head), element("tbody", {}, ...body)));
}

function leafChart(sources) {
  const holder = element("figure", { style: "margin: 0" }, element("h4", { text: "Mapped bytes by leaf size" }));
  const rows = [];
  for (const { name, totals } of sources) {
    const stack = element("div", { class: "stack", role: "img", "aria-label": `Mapped bytes of ${name} by leaf size; the table has the numbers` });
    for (const leaf of totals.leaves) {
      const look = lookOfLeaf({ bytes: leaf.leaf_bytes, contiguous: leaf.contiguous, what: "leaf" });
      const share = leaf.bytes / totals.mapped_bytes;
      stack.append(element("span", { class: LIGHT_LETTERS.has(look.colour) ? "light" : "", title: `${look.words}: ${size(leaf.bytes)}`,
        style: `flex: ${share} 1 0; background: ${background([{ look, share: 1 }])}`, text: share > 0.08 && !look.striped ? look.letters : "" }));
      rows.push([name, element("span", {}, swatch(look), ` ${look.words}`), number(leaf.leaves), size(leaf.bytes), percent(leaf.bytes, totals.mapped_bytes)]);
    }
    holder.append(element("div", { class: "facts", text: `${name}: ${size(totals.mapped_bytes)}` }), stack);
  }
  const numbers = table("Leaves by size", [["source"], ["leaf"], ["leaves", "number"], ["bytes", "number"], ["of what is mapped", "number"]], rows);
  return element("div", { class: "pair" }, holder, numbers);
}

function tableChart(sources) {
  const most = Math.max(...sources.map(({ totals }) => totals.table_bytes), 1);
  const rows = sources.map(({ name, totals }, at) => [
    name,
    element("span", { class: "measure", style: `width: ${((totals.table_bytes * 9) / most).toFixed(2)}rem; background: var(--s${at % 6})`, "aria-hidden": true }),
    size(totals.table_bytes), number(totals.tables), percent(totals.table_bytes, totals.mapped_bytes),
    number(totals.tlb_entries), number(totals.tlb_entries_without_hint),
  ]);
  return element("div", {}, element("h4", { text: "Table memory, and TLB entries that hold everything" }),
    table("Table memory", [["source"], ["table memory"], ["", "number"], ["tables", "number"], ["of what is mapped", "number"], ["TLB entries (modelled)", "number"], ["without the contiguous hint", "number"]], rows));
}

const MARKS = [
  (x, y) => svg("circle", { cx: x, cy: y, r: 3.5 }),
  (x, y) => svg("rect", { x: x - 3.2, y: y - 3.2, width: 6.4, height: 6.4 }),
  (x, y) => svg("path", { d: `M${x} ${y - 4.4}l4.2 7.6h-8.4z` }),
  (x, y) => svg("path", { d: `M${x} ${y - 4.6}l4.6 4.6l-4.6 4.6l-4.6 -4.6z` }),
  (x, y) => svg("path", { d: `M${x} ${y + 4.4}l4.2 -7.6h-8.4z` }),
  (x, y) => svg("path", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`, "stroke-width": 2 }),
];

function reachChart(sources) {
  const [width, height, left, bottom, top] = [660, 300, 46, 40, 12];
  const steps = sources[0].totals.reach.length - 1;
  const x = (shift) => left + ((width - left - 26) * shift) / steps;
  const y = (share) => top + (height - bottom - top) * (1 - share);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "TLB reach by number of entries, modelled; the table below has the numbers" });
  for (let share = 0; share <= 1; share += 0.25) {
    drawing.append(svg("line", { x1: left, x2: width - 26, y1: y(share), y2: y(share), class: "grid" }));
    const label = svg("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end", class: "soft" });
    label.textContent = `${share * 100} %`;
    drawing.append(label);
  }
  for (let shift = 0; shift <= steps; shift += 2) {
    const label = svg("text", { x: x(shift), y: height - bottom + 18, "text-anchor": "middle", class: "soft" });
    label.textContent = number(2 ** shift);
    drawing.append(label);
  }
  const axis = svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle", class: "soft" });
  axis.textContent = "TLB entries";
  drawing.append(axis);
  const legend = element("ul", { class: "legend" });
  sources.forEach(({ name, totals }, at) => {
    const colour = `var(--s${at % 6})`;
    for (const [values, dashes] of [[totals.reach_without_hint, "5 4"], [totals.reach, ""]]) {
      const points = values.map((bytes, shift) => `${x(shift)},${y(totals.mapped_bytes ? bytes / totals.mapped_bytes : 0)}`);
      const line = svg("polyline", { points: points.join(" "), fill: "none", "stroke-width": dashes ? 1.6 : 2.2, "stroke-dasharray": dashes });
      line.style.stroke = colour;
      drawing.append(line);
    }
    totals.reach.forEach((bytes, shift) => {
      if ((shift + at) % 3) return;
      const mark = MARKS[at % 6](x(shift), y(totals.mapped_bytes ? bytes / totals.mapped_bytes : 0));
      mark.style.cssText = `fill: ${colour}; stroke: ${colour}`;
      drawing.append(mark);
    });
    const sample = svg("svg", { viewBox: "0 0 26 12", width: 26, height: 12, "aria-hidden": "true" });
    sample.style.cssText = `width: 26px; fill: ${colour}; stroke: ${colour}`;
    sample.append(svg("path", { d: "M0 6h26", "stroke-width": 2 }), MARKS[at % 6](13, 6));
    legend.append(element("li", {}, sample, name));
  });
  legend.append(element("li", { text: "– – without the contiguous hint" }));
  const shown = sources[0].totals.reach.map((_, shift) => shift).filter((shift) => shift >= 4 && shift % 2 === 0);
  const rows = sources.flatMap(({ name, totals }) => [[name, totals.reach], [`${name}, without hint`, totals.reach_without_hint]])
    .map(([name, values], at) => [name, ...shown.map((shift) => percent(values[shift], sources[at >> 1].totals.mapped_bytes))]);
  const numbers = table("TLB reach", [["source"], ...shown.map((shift) => [number(2 ** shift), "number"])], rows);
  return element("div", {}, element("h4", { text: "TLB reach: how much of what is mapped so many entries hold (modelled)" }),
    element("p", { class: "note", text: "The model: an entry holds a leaf of any size, or a whole contiguous group, and the largest come first. Real TLBs hold less." }),
    element("div", { class: "pair" }, element("div", {}, drawing, legend), numbers));
}

function drawCharts(holder, sources) {
  const some = sources.filter(({ totals }) => totals.mapped_bytes > 0);
  if (!some.length) {
    holder.append(element("p", { text: "Nothing is mapped." }));
    return;
  }
  holder.append(leafChart(some), tableChart(some), reachChart(some));
}

/** Rows of several files under the names that they share. */
function drawBenches(holder, benches) {
  for (const kind of new Set(benches.map((bench) => bench.kind))) {
    const files = benches.filter((bench) => bench.kind === kind);
    const { names, measures, is_whole } = files[0];
    const rows = new Map();
    files.forEach((file, at) => {
      for (const row of file.rows) {
        const key = JSON.stringify(row.names);
        if (!rows.has(key)) rows.set(key, { names: row.names, values: files.map(() => null) });
        rows.get(key).values[at] = row.values;
      }
    });
    const picker = element("select", { "aria-label": `What to compare of ${kind}` }, ...measures.map((text, value) => element("option", { value, text })));
    const place = element("div");
    const draw = () => {
      const at = Number(picker.value);
      const of = (row, file) => (row.values[file] ? row.values[file][at] : null);
      const all = [...rows.values()];
      const largest = (chosen) => Math.max(...chosen.flatMap((row) => files.map((_, file) => of(row, file) || 0)), Number.MIN_VALUE);
      // A bar is beside those of the same row, but for parts of a whole.
      const heads = [...names.map((text) => [text]), ...files.flatMap((file) => [[file.file], ["", "number"]]), ...files.slice(1).map((file) => [`${file.file} ÷ ${files[0].file}`, "number"])];
      const shown = all.map((row) => {
        const most = largest(is_whole ? all : [row]);
        const cells = files.flatMap((_, file) => {
          const value = of(row, file);
          const bar = element("span", { class: "measure", style: `width: ${(((value || 0) * 6) / most).toFixed(2)}rem; background: var(--s${file % 6})`, "aria-hidden": true });
          return [bar, value === null ? "–" : Number.isInteger(value) ? number(value) : value.toFixed(3)];
        });
        const ratios = files.slice(1).map((_, file) => (of(row, 0) && of(row, file + 1) !== null ? (of(row, file + 1) / of(row, 0)).toFixed(3) : "–"));
        return [...row.names, ...cells, ...ratios];
      });
      place.replaceChildren(element("p", { class: "facts", text: measures[at] }), table(`${kind}: ${measures[at]}`, heads, shown));
    };
    picker.addEventListener("change", draw);
    draw();
    const more = files.reduce((sum, file) => sum + file.more_rows, 0);
    holder.append(element("h4", { text: kind }), element("p", { class: "filters" }, element("label", {}, "measure ", picker)), place);
    if (more) holder.append(element("p", { class: "note", text: `${plural(more, "row is", "rows are")} not shown.` }));
  }
}
