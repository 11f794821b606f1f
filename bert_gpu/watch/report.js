"use strict";
// The value of every curve under the pointer, read back from the curve itself.
const readOut = document.createElement("div");
readOut.id = "read-out";
readOut.hidden = true;
document.body.append(readOut);

function shown(value) {
  const size = Math.abs(value);
  for (const [limit, letter] of [[1e9, "B"], [1e6, "M"]])
    if (size >= limit) return `${(value / limit).toPrecision(4)} ${letter}`;
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size && size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
}

function pointsOf(path) {
  path.points ||= [...path.getAttribute("d").matchAll(/[ML] ([-\d.]+) ([-\d.]+)/g)]
    .map(([, x, y]) => [+x, +y]);
  return path.points;
}

function valueAt(plot, y) {
  const [, top, , height] = plot.box, [low, high] = plot.y;
  const share = 1 - (y - top) / height;
  return plot.log ? low * (high / low) ** share : low + share * (high - low);
}

function read(event) {
  const svg = event.target.closest?.("svg[data-axis]");
  readOut.hidden = true;
  if (!svg) return;
  const plot = JSON.parse(svg.dataset.plot), frame = svg.getBoundingClientRect();
  const x = (event.clientX - frame.left) / frame.width * svg.viewBox.baseVal.width;
  const rows = [], names = svg.closest("section").querySelectorAll(".legend [data-run]");
  for (const name of names) {
    const curves = [".mean path", ".valid > path"]
      .map(part => svg.querySelectorAll(`.run-${name.dataset.run}${part}`));
    for (const path of curves[0].length ? curves[0] : curves[1]) {
      const points = pointsOf(path);
      if (!path.getClientRects().length || x < points[0][0] - 6 || x > points.at(-1)[0] + 6)
        continue;
      const near = points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
      const row = document.createElement("div"), swatch = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = `var(--series-${name.dataset.color})`;
      row.append(swatch, ` ${name.dataset.name} ${shown(valueAt(plot, near[1]))}`);
      rows.push(row);
    }
  }
  if (!rows.length) return;
  const [left, , width] = plot.box;
  const at = plot.x[0] + (x - left) / width * (plot.x[1] - plot.x[0]);
  const place = plot.unit === "steps" ? Math.round(at) : at;
  readOut.replaceChildren(`${shown(place)} ${plot.unit}`, ...rows.slice(0, 12));
  readOut.hidden = false;
  const room = document.documentElement.clientWidth - readOut.offsetWidth - 8;
  readOut.style.left = `${scrollX + Math.max(8, Math.min(event.clientX + 14, room))}px`;
  readOut.style.top = `${scrollY + event.clientY + 18}px`;
}
addEventListener("pointermove", read);
addEventListener("pointerdown", read);
addEventListener("scroll", () => { readOut.hidden = true; });
