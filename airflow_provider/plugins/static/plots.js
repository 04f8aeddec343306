// Plots of a query's batches, over time, with one cursor.
import { React, html } from "./host.js";
import { bytes, duration, millis, moment, short, whole } from "./format.js";
import uPlot from "./vendor/uPlot.js";

const COLOURS = ["blue", "orange", "green", "purple", "red", "cyan", "yellow", "pink"];
const HEIGHT = 170;
const MOST_PHASES = 6;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--chakra-colors-${name}`).trim();
}

/** Which plots there are: title, series as [label, values], how to say a value, and a form. */
function plotsOf(batches) {
  const of = (name) => batches.map((b) => b[name]);
  return [
    { title: "Rows per second", say: short, series: [["in", of("input_rate")], ["processed", of("process_rate")]] },
    { title: "Batch time by phase", say: millis, series: phasesOf(batches), isStacked: true },
    { title: "Backlog", say: whole, series: [["unread", of("backlog")]] },
    { title: "Watermark behind", say: duration, series: [["behind", of("lag_s")]] },
    { title: "State rows", say: short, series: [["rows", of("state_rows")]] },
    { title: "State size", say: bytes, series: [["bytes", of("state_bytes")]] },
    { title: "Late rows", say: whole, series: [["late", of("late_rows")]] },
  ].filter((plot) => plot.series.some(([, values]) => values.some((v) => v !== null)));
}

function phasesOf(batches) {
  const sums = {};
  for (const batch of batches)
    for (const [name, ms] of Object.entries(batch.duration_ms)) sums[name] = (sums[name] ?? 0) + ms;
  const names = Object.keys(sums).sort((a, b) => sums[b] - sums[a]);
  const shown = names.slice(0, MOST_PHASES);
  const series = shown.map((name) => [name, batches.map((b) => b.duration_ms[name] ?? 0)]);
  const rest = names.slice(MOST_PHASES);
  if (rest.length)
    series.push(["others", batches.map((b) => rest.reduce((sum, n) => sum + (b.duration_ms[n] ?? 0), 0))]);
  return series.length ? series : [["all", batches.map((b) => b.total_ms)]];
}

/** Each series on top of those after it, so that the first is drawn first and the others over it. */
function stacked(series) {
  const tops = [];
  let below = series[0][1].map(() => 0);
  for (const [, values] of [...series].reverse()) {
    below = values.map((v, i) => below[i] + (v ?? 0));
    tops.unshift(below);
  }
  return tops;
}

export function Plots({ history, marks }) {
  const batches = history.batches.filter((b) => b.at);
  const theme = useTheme();
  const key = `ss-${history.query}`;
  return html`<div className="ss-plots">
    ${plotsOf(batches).map((plot) => html`<${Plot} key=${plot.title} plot=${plot} batches=${batches} marks=${marks} theme=${theme} sync=${key} />`)}
    ${marks.length ? html`<p className="ss-muted ss-legend">Vertical lines: solid for a new attempt, dashed for a savepoint.</p>` : null}
  </div>`;
}

function Plot({ plot, batches, marks, theme, sync }) {
  const place = React.useRef(null);
  const chart = React.useRef(null);
  const labels = plot.series.map(([label]) => label).join();
  const marked = React.useRef(marks);
  marked.current = marks;
  const times = batches.map((b) => Date.parse(b.at) / 1000);
  const tops = plot.isStacked ? stacked(plot.series) : plot.series.map(([, values]) => values);
  const data = [times, ...tops];
  React.useEffect(() => {
    const element = place.current;
    const width = () => Math.max(200, element.clientWidth);
    const options = optionsOf(plot, width(), marked, sync);
    const made = new uPlot(options, data, element);
    chart.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: width(), height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      chart.current = null;
    };
  }, [labels, theme, sync]);
  React.useEffect(() => chart.current?.setData(data), [batches.length, batches.at(-1)?.batch, batches.at(-1)?.at]);
  const last = plot.series.map(([label, values]) => `${label} ${plot.say(values.at(-1))}`).join(", ");
  return html`<figure className="ss-plot" role="img" aria-label=${`${plot.title}, last batch: ${last}`}>
    <figcaption>${plot.title}</figcaption>
    <div ref=${place}></div>
  </figure>`;
}

function optionsOf(plot, width, marks, sync) {
  const [text, line] = [colour("fg-muted"), colour("border-emphasized")];
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
  const series = plot.series.map(([label, values], i) => {
    const stroke = colour(`${COLOURS[i % COLOURS.length]}-500`);
    return {
      label,
      stroke,
      width: 1.5,
      fill: plot.isStacked ? stroke : undefined,
      points: { show: values.length < 3 },
      spanGaps: true,
      value: (_, shown, __, at) => (at === null || at === undefined ? "–" : plot.say(values[at] ?? shown)),
    };
  });
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: sync }, y: false, points: { size: 6 } },
    legend: { live: true },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.05] } },
    axes: [{ ...axis, space: 70, size: 32, values: clockTimes }, { ...axis, size: 76, values: (_, ticks) => ticks.map(plot.say) }],
    series: [{ label: "at", value: (_, at) => (at === null || at === undefined ? "–" : moment(new Date(at * 1000).toISOString()).slice(11)) }, ...series],
    hooks: { draw: [(u) => drawMarks(u, marks.current)] },
  };
}

function clockTimes(_, ticks) {
  const isLong = ticks.length > 1 && ticks.at(-1) - ticks[0] > 86400;
  return ticks.map((t) => {
    const said = moment(new Date(t * 1000).toISOString());
    return isLong ? said.slice(5, 16) : said.slice(11, ticks[1] - ticks[0] < 60 ? 19 : 16);
  });
}

function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.lineWidth = 1;
  for (const mark of marks) {
    const at = Date.parse(mark.at) / 1000;
    if (at < u.scales.x.min || at > u.scales.x.max) continue;
    const x = Math.round(u.valToPos(at, "x", true));
    ctx.strokeStyle = colour(mark.kind === "attempt" ? "fg-error" : "fg-muted");
    ctx.setLineDash(mark.kind === "attempt" ? [] : [4, 4]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** The theme, so that canvases are drawn again when it changes: they do not inherit colours. */
function useTheme() {
  const read = () => document.documentElement.className;
  const [theme, setTheme] = React.useState(read);
  React.useEffect(() => {
    const observer = new MutationObserver(() => setTheme(read()));
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
    return () => observer.disconnect();
  }, []);
  return theme;
}
