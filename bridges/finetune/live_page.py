"""The page of `dew runs --serve`: what it looks like, and what draws it in the browser."""

from __future__ import annotations

import json

from bridges.finetune.report import CURVES, STYLE
from bridges.finetune.run_list import HEADINGS

SECONDS = 3
"""Between two looks at the runs."""
PAGE = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>dew runs</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
"""
    + STYLE
    + """ tr.chosen td { font-weight: 600 } tbody tr { cursor: pointer }
 iframe { width: 100%; height: 40rem; border: 1px solid #d0d7de; background: #fff }
 text { font: 11px system-ui, sans-serif; fill: #57606a }
 #fault { color: #cf222e }
</style></head><body>
<h1>Runs</h1><p id="fault" role="alert"></p>
<table id="runs"><thead></thead><tbody></tbody></table>
<h2 id="name"></h2><p id="state" aria-live="polite"></p><div id="curves"></div>
<table id="last"></table><div id="report"></div>
<script>
"use strict";
const CURVES = __CURVES__, SECONDS = __SECONDS__;
const COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df"];
const NAMES = __HEADINGS__;
const at = (id) => document.getElementById(id);
const made = (name, text) => {
  const node = document.createElement(name);
  node.textContent = text ?? "";
  return node;
};
const drawn = (name, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const short = (value) =>
  typeof value === "number" ? String(Number(value.toPrecision(5))) : String(value);
let chosen = decodeURIComponent(location.hash.slice(1)), reported = null;

function row(cells, name = "td") {
  const line = document.createElement("tr");
  line.append(...cells.map((cell) => made(name, cell)));
  return line;
}

function listed(runs) {
  at("runs").tHead.replaceChildren(row(NAMES, "th"));
  at("runs").tBodies[0].replaceChildren(...runs.map((run) => {
    const line = row(run.cells);
    line.tabIndex = 0;
    line.className = run.name === chosen ? "chosen" : "";
    const choose = () => { chosen = run.name; location.hash = encodeURIComponent(chosen); look(); };
    line.onclick = choose;
    line.onkeydown = (event) => { if (event.key === "Enter") choose(); };
    return line;
  }));
}

function picture(title, lines) {
  const points = lines.flatMap((line) => line.points);
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const [left, right, low, high] =
    [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const x = (value) => 60 + 620 * (value - left) / (right - left || 1);
  const y = (value) => 190 - 160 * (value - low) / (high - low || 1);
  const svg = drawn("svg", { viewBox: "0 0 700 220", role: "img", "aria-label": title });
  svg.append(drawn("rect", { x: 60, y: 30, width: 620, height: 160, fill: "none",
                             stroke: "#d0d7de" }));
  svg.append(drawn("text", { x: 60, y: 20 }, title));
  for (const [value, place] of [[high, 36], [low, 190]])
    svg.append(drawn("text", { x: 54, y: place, "text-anchor": "end" }, short(value)));
  for (const [value, anchor] of [[left, "start"], [right, "end"]])
    svg.append(drawn("text", { x: x(value), y: 206, "text-anchor": anchor }, short(value)));
  lines.forEach((line, number) => {
    const colour = COLOURS[number % COLOURS.length];
    const path = line.points.map((point) => `${x(point[0])},${y(point[1])}`).join(" ");
    svg.append(drawn("polyline", { points: path, fill: "none", stroke: colour,
                                   "stroke-width": 1.5 }));
    for (const point of line.points.length < 50 ? line.points : [])
      svg.append(drawn("circle", { cx: x(point[0]), cy: y(point[1]), r: 2, fill: colour }));
    const label = drawn("text", { x: 680 - 90 * number, y: 20, "text-anchor": "end" }, line.name);
    label.style.fill = colour;
    svg.append(label);
  });
  const figure = document.createElement("figure");
  figure.append(svg);
  return figure;
}

function shown(run) {
  at("name").textContent = run.name;
  at("state").textContent = run.status;
  const named = new Set(CURVES.flatMap((curve) => curve[1]));
  const more = Object.keys(run.curves).filter((name) => !named.has(name));
  const pictures = [...CURVES, ...more.map((name) => [name.replace("eval_", ""), [name]])];
  at("curves").replaceChildren(...pictures.flatMap(([title, names]) => {
    const lines = names.filter((name) => run.curves[name]).map((name) => (
      { name: name.startsWith("eval_") ? "held out" : "training", points: run.curves[name] }));
    return lines.length ? [picture(title, lines)] : [];
  }));
  at("last").replaceChildren(...Object.entries(run.last).map((pair) => row(pair.map(short))));
  if (reported === run.name + run.report) return;
  reported = run.name + run.report;
  const frame = made("iframe");
  frame.setAttribute("sandbox", "");
  frame.title = "report with samples before and after";
  frame.src = "/report.html?run=" + encodeURIComponent(run.name);
  at("report").replaceChildren(...(run.report ? [made("h2", "Report"), frame] : []));
}

async function look() {
  try {
    const answer = await fetch("/runs.json?run=" + encodeURIComponent(chosen));
    const found = await answer.json();
    at("fault").textContent = found.fault;
    if (found.run) chosen = found.run.name;
    listed(found.runs);
    if (found.run) shown(found.run);
  } catch (error) {
    at("fault").textContent = "no answer from dew runs --serve; is it still running?";
  }
}
look();
setInterval(look, 1000 * SECONDS);
</script></body></html>
"""
)


def live_page() -> str:
    """Return the page, which asks for `/runs.json` again and again and needs no other host."""
    curves = [[title, list(names)] for title, names, _ in CURVES]
    page = PAGE.replace("__CURVES__", json.dumps(curves))
    page = page.replace("__HEADINGS__", json.dumps(HEADINGS))
    return page.replace("__SECONDS__", str(SECONDS))
