"use strict";
const points = JSON.parse(document.getElementById("points").textContent);
const shared = JSON.parse(document.getElementById("shared").textContent);
const slider = document.getElementById("slider");
const svg = document.querySelector("#drawing svg");
const byId = (id) => document.getElementById(id);

// Points come with the dearest first; the slider goes from cheap to dear.
const place = () => points.length - 1 - Number(slider.value);

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  svg.append(made);
  return made;
}

const { left, bottom } = byId("drawing").dataset;
const across = shape("line", { class: "guide", x1: left });
const down = shape("line", { class: "guide", y2: bottom });
const hint = shape("circle", { class: "hint", r: 5, visibility: "hidden" });
const mark = shape("circle", { class: "mark", r: 5.5 });

function row(each) {
  const line = document.createElement("tr");
  const name = document.createElement("th");
  name.scope = "row";
  name.textContent = each.model;
  line.append(name);
  if (!each.share) {
    name.colSpan = 3;
    return line;
  }
  const answers = document.createElement("td");
  answers.textContent = each.answers;
  const share = document.createElement("td");
  share.className = "number";
  share.textContent = each.share;
  line.append(answers, share);
  return line;
}

function show() {
  const point = points[place()];
  for (const id of ["error", "errors", "cost", "costs", "advice", "target", "download"]) byId(id).textContent = point[id];
  for (const id of ["seconds", "tail"]) if (byId(id)) byId(id).textContent = point[id];
  byId("observed").textContent = point.observed;
  byId("members").replaceChildren(...point.rows.map(row));
  slider.setAttribute("aria-valuetext", `${byId("error_kind").textContent.toLowerCase()} ${point.error}, cost ${point.cost}: ${point.cascade}`);
  mark.setAttribute("cx", point.x);
  mark.setAttribute("cy", point.y);
  for (const [line, ends] of [[across, { x2: point.x, y1: point.y, y2: point.y }], [down, { x1: point.x, x2: point.x, y1: point.y }]])
    for (const [key, value] of Object.entries(ends)) line.setAttribute(key, value);
}

function nearest(event) {
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const away = points.map((point) => Math.hypot(point.x - at.x, point.y - at.y));
  return away.indexOf(Math.min(...away));
}

svg.addEventListener("pointermove", (event) => {
  const point = points[nearest(event)];
  hint.setAttribute("cx", point.x);
  hint.setAttribute("cy", point.y);
  hint.setAttribute("visibility", "visible");
});
svg.addEventListener("pointerleave", () => hint.setAttribute("visibility", "hidden"));
svg.addEventListener("click", (event) => {
  slider.value = points.length - 1 - nearest(event);
  show();
});
slider.addEventListener("input", show);
byId("download").addEventListener("click", () => {
  const link = document.createElement("a");
  const own = { ...shared.policy, ...points[place()].policy };
  const whole = { ...own, provenance: { ...own.provenance, kept_sample: shared.kept_sample } };
  link.href = URL.createObjectURL(new Blob([JSON.stringify(whole, null, 1)], { type: "application/json" }));
  link.download = "policy.json";
  link.click();
  URL.revokeObjectURL(link.href);
});
show();
