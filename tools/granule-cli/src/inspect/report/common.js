"use strict";
// Data, words and elements that all parts of the page use. Text comes from dumps: it is only ever set as
// text, never as HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);

/** An element with attributes (`class`, `text`, others by name) and children. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "text") made.textContent = value;
    else if (key === "class") made.className = value;
    else if (key === "style") made.style.cssText = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const UNITS = ["", "K", "M", "G", "T", "P", "E"];

/** Bytes in the largest unit, with a decimal if that is not exact. */
function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < UNITS.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  const shown = Number.isInteger(bytes) ? String(bytes) : bytes.toFixed(1);
  return shown + (UNITS[unit] || " bytes");
}

const number = (value) => value.toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
/** A share in percent; a small one with two digits that count. */
function percent(part, all) {
  const share = (part * 100) / all;
  if (!all) return "–";
  return `${share > 0 && share < 0.1 ? share.toPrecision(2) : share.toFixed(1)} %`;
}
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

/** Hexadecimal with 16 digits of an offset from a tree's base, which does not fit a number. */
const address = (tree, offset) => "0x" + (BigInt(tree.base) + BigInt(offset)).toString(16).padStart(16, "0");
const physical = (value) => "0x" + BigInt(value).toString(16).padStart(12, "0");

/** The offset of an address in a tree, or null if the tree does not translate it. */
function offsetIn(tree, text) {
  const offset = BigInt(text) - BigInt(tree.base);
  return offset >= 0n && offset < 1n << BigInt(tree.va_bits) ? Number(offset) : null;
}

// --- Colours. Letters, and stripes, have the meaning of a colour, too.

/** The sizes of leaves that arm64 has, by page size and level; others share the last colour. */
const LEAF_SIZES = [2 ** 12, 2 ** 14, 2 ** 16, 2 ** 21, 2 ** 25, 2 ** 29, 2 ** 30];
const ACCESS_COLOURS = { "r--": "--r", "rw-": "--rw", "r-x": "--rx", rwx: "--rwx", "--x": "--x" };

/** How leaves of a kind look: colour, stripes, letters. */
function lookOfLeaf(kind) {
  const at = LEAF_SIZES.indexOf(kind.bytes);
  return {
    colour: `--l${at < 0 ? LEAF_SIZES.length : at}`,
    striped: kind.contiguous,
    letters: size(kind.bytes) + (kind.contiguous ? " c" : ""),
    words: `${size(kind.bytes)} ${kind.what}${kind.contiguous ? ", contiguous" : ""}`,
    order: kind.bytes * 2 + (kind.contiguous ? 1 : 0),
  };
}

const ACCESS_WORDS = { "r--": "loads", "rw-": "loads, stores", "r-x": "loads, executes", rwx: "writable and executable", "---": "no access", "--x": "executes" };

/** How an access looks: `rw-`, with `u` before it for EL0. */
function lookOfAccess(access) {
  const bits = access.slice(-3);
  const user = access.length > 3;
  return {
    colour: ACCESS_COLOURS[bits] || "--other",
    striped: user,
    letters: access,
    words: `${ACCESS_WORDS[bits] || bits}${user ? ", EL0 too" : ""}`,
    order: "rwx".split("").reduce((sum, letter) => sum * 2 + (bits.includes(letter) ? 1 : 0), 0) * 2 + (user ? 1 : 0),
  };
}

const STRIPES = "repeating-linear-gradient(135deg, var(--stripe) 0 1.5px, transparent 1.5px 6px)";

/** The background of parts one above the other, each as high as its share; what is left stays empty. */
function background(parts) {
  if (parts.length === 1 && parts[0].share > 0.999) {
    const { colour, striped } = parts[0].look;
    return (striped ? `${STRIPES}, ` : "") + `linear-gradient(var(${colour}), var(${colour}))`;
  }
  let from = 0;
  const stops = [];
  for (const { look, share } of parts) {
    const to = Math.min(from + share * 100, 100);
    stops.push(`var(${look.colour}) ${from.toFixed(2)}% ${to.toFixed(2)}%`);
    from = to;
  }
  stops.push(`transparent ${from.toFixed(2)}% 100%`);
  return `linear-gradient(to bottom, ${stops.join(", ")})`;
}

const LIGHT_LETTERS = new Set(["--l0", "--l6", "--l7", "--rwx"]);

function swatch(look) {
  return element("span", { class: "swatch", style: `background: ${background([{ look, share: 1 }])}; print-color-adjust: exact`, "aria-hidden": true });
}
