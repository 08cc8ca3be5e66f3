// Where cells go: rows of a window of addresses, and segments of a row. Nothing is drawn here.

const MOST_ROWS = 12;
/** A gap is folded if it is at least this part of what it is in. */
const FOLDED = 0.1;
/** Cells that a region must have for each of its rows, seen as a part of all or alone. */
const CELLS_PER_ROW = 6;
const CELLS_PER_ROW_ALONE = 1.5;
/** Segments of a row: cells that are narrower than one are put together. */
const SLOTS = 600;

/** A cell of the data as an object. `parts` are `[kind, access, bytes]`. */
function readCell(tree, [offset, bytes, ranges, ...rest]) {
  if (Array.isArray(rest[0])) return { offset, bytes, ranges, end: offset + bytes, parts: rest[0], mixed: true };
  const [kind, attributes, output] = rest;
  const parts = [[kind, tree.attributes[attributes].access, bytes]];
  return { offset, bytes, ranges, end: offset + bytes, parts, kind, words: tree.attributes[attributes].words, output, mixed: false };
}

/** The index of the first cell that ends after `offset`. */
function firstAfter(cells, offset) {
  let [low, high] = [0, cells.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cells[middle].end > offset) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The regions of a window: runs of cells, apart where a gap is large beside what it is in. */
function regionsOf(cells, from, to) {
  const first = firstAfter(cells, from);
  let end = first;
  while (end < cells.length && cells[end].offset < to) end += 1;
  if (first === end) return [];
  const region = (i, j) => {
    const low = Math.max(cells[i].offset, from);
    const high = Math.min(cells[j - 1].end, to);
    let [gap, at] = [0, 0];
    for (let k = i + 1; k < j; k += 1) {
      const here = cells[k].offset - cells[k - 1].end;
      if (here > gap) [gap, at] = [here, k];
    }
    return { i, j, low, high, at, ratio: gap / (high - low) };
  };
  const regions = [region(first, end)];
  while (regions.length < MOST_ROWS) {
    let best = 0;
    regions.forEach((one, k) => {
      if (one.ratio > regions[best].ratio) best = k;
    });
    const { i, j, at, ratio } = regions[best];
    if (ratio < FOLDED) break;
    regions.splice(best, 1, region(i, at), region(at, j));
  }
  return regions;
}

/** The rows of a window: `low`, `high`, and the bytes of the gap before each. */
function rowsOf(tree, cells, from, to) {
  const regions = regionsOf(cells, from, to).map((region) => ({ ...region, rows: 1 }));
  const least = regions.length > 1 ? CELLS_PER_ROW : CELLS_PER_ROW_ALONE;
  for (let left = MOST_ROWS - regions.length; left > 0; left -= 1) {
    const per = (region) => (region.j - region.i) / region.rows;
    const most = regions.reduce((best, region) => (per(region) > per(best) ? region : best), regions[0]);
    if (!most || (most.j - most.i) / (most.rows + 1) < least) break;
    most.rows += 1;
  }
  const rows = [];
  let before = null;
  for (const { low, high, rows: number } of regions) {
    // Rows begin at round addresses.
    const step = number === 1 ? Infinity : 2 ** Math.ceil(Math.log2(Math.max((high - low) / number, tree.page_size)));
    for (let at = low; at < high; ) {
      const end = number === 1 ? high : Math.min((Math.floor(at / step) + 1) * step, high);
      rows.push({ low: at, high: end, gap: before === null ? 0 : at - before });
      before = end;
      at = end;
    }
  }
  return rows;
}

/** The segments of a row: cells `i` up to `j`, from `x` to `x2` in parts of the row, with bytes by part. */
function segmentsOf(cells, row) {
  const span = row.high - row.low;
  const segments = [];
  let thin = null;
  for (let i = firstAfter(cells, row.low); i < cells.length && cells[i].offset < row.high; i += 1) {
    const cell = cells[i];
    const [low, high] = [Math.max(cell.offset, row.low), Math.min(cell.end, row.high)];
    const [x, x2] = [(low - row.low) / span, (high - row.low) / span];
    const seen = (high - low) / cell.bytes;
    const add = (parts) => {
      for (const [kind, access, bytes] of cell.parts) {
        const key = `${kind} ${access}`;
        const old = parts.get(key);
        parts.set(key, [kind, access, (old ? old[2] : 0) + bytes * seen]);
      }
      return parts;
    };
    if (x2 - x >= 1.2 / SLOTS) {
      thin = null;
      segments.push({ i, j: i + 1, x, x2, bytes: high - low, parts: add(new Map()), thin: false });
      continue;
    }
    const slot = Math.floor(x * SLOTS);
    if (thin && thin.slot === slot) {
      thin.j = i + 1;
      thin.x2 = x2;
      thin.bytes = high - thin.low;
      add(thin.parts);
    } else {
      thin = { i, j: i + 1, x, x2, low, bytes: high - low, parts: add(new Map()), thin: true, slot };
      segments.push(thin);
    }
  }
  return segments;
}
