// Plots over time with one cursor: of batches, of hours, and of savepoints.
import { React, html } from "./host.js";
import { backlogOf, bytes, duration, millis, moment, phaseTimes, short, totalMs, whole } from "./format.js";
import uPlot from "./vendor/uPlot.js";

const COLOURS = ["blue", "orange", "green", "purple", "red", "cyan", "yellow", "pink"];
const HEIGHT = 170;
const MOST_PHASES = 6;
const MOST_LINES = 40; // of savepoints; more of them are short marks, which leave the plot legible
const MOST_LISTED = 50;
const NEAR_PX = 5;
const GAP = 10; // so many usual distances of two batches: no line is drawn over it
const LEAST_GAP_S = 60;
const HALF_S = 30; // of a plot of one moment
// Between the ticks of a number of things: half of one is none.
const WHOLE_STEPS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();
// In the order of their colours, so that a phase has the same one in each stream.
const PHASES = ["addBatch", "latestOffset", "queryPlanning", "getBatch", "walCommit", "commitOffsets", "commitBatch"];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--chakra-colors-${name}`).trim();
}

const times = (moments) => moments.map((at) => Date.parse(at) / 1000);
const filled = (plots) => plots.filter((plot) => plot.series.some(([, values]) => values.some((v) => v !== null)));

/** Plots of batches: when, and of each title, series as [label, values], how to say a value, form. */
export function batchPlots(history, isLive) {
  const batches = withGaps(history.batches.filter((b) => b.at));
  const of = (name) => batches.map((b) => b[name] ?? null);
  const plots = [
    { title: "Rows per second", say: short, series: [["in", of("input_rate")], ["processed", of("process_rate")]] },
    { title: "Batch time by phase", say: millis, series: phasesOf(batches), isStacked: true },
    { title: "Backlog", say: whole, series: [["unread", batches.map(backlogOf)]] },
    ...(isLive ? [{ title: "Watermark behind", say: duration, series: [["behind", of("lag_s")]] }] : []),
    { title: "State rows", say: short, series: [["rows", of("state_rows")]] },
    { title: "State size", say: bytes, series: [["bytes", of("state_bytes")]] },
    { title: "Late rows", say: whole, series: [["late", of("late_rows")]] },
  ];
  return { times: times(of("at")), plots: filled(plots) };
}

/** The batches, with an empty one wherever no driver worked for much longer than a batch takes. */
function withGaps(batches) {
  const starts = times(batches.map((b) => b.at));
  const pauses = starts.slice(1).map((at, i) => at - starts[i]);
  const usual = [...pauses].sort((a, b) => a - b)[Math.floor(pauses.length / 2)] ?? 0;
  const isGap = (i) => pauses[i] > Math.max(LEAST_GAP_S, GAP * usual) && pauses[i] > GAP * ((totalMs(batches[i]) ?? 0) / 1000);
  return batches.flatMap((b, i) => {
    if (!isGap(i)) return [b];
    const at = new Date((starts[i] + pauses[i] / 2) * 1000).toISOString();
    return [b, { at, duration_ms: null }];
  });
}

/** Plots of the hours before the batches that are kept in full. */
export function hourPlots(history) {
  const of = (name) => history.hours.map((h) => h[name]);
  const plots = [
    { title: "Rows an hour", say: short, series: [["rows", of("rows")]] },
    { title: "Batch time by hour", say: millis, series: [["longest", of("max_ms")], ["mean", of("mean_ms")], ["shortest", of("min_ms")]] },
    { title: "Batches an hour", say: whole, series: [["batches", of("batches")]] },
    { title: "State rows at the end of the hour", say: short, series: [["rows", of("state_rows")]] },
    { title: "State size at the end of the hour", say: bytes, series: [["bytes", of("state_bytes")]] },
    { title: "Late rows an hour", say: whole, series: [["late", of("late_rows")]] },
  ];
  return { times: times(of("hour")), plots: filled(plots) };
}

/** Plots over the runs of a job, oldest first. */
export function runPlots(runs) {
  const of = (name) => runs.map((run) => run[name]);
  const plots = [
    { title: "Rows by run", say: short, series: [["read", of("rows_read")], ["written", of("rows_written")]] },
    { title: "Late rows by run", say: whole, series: [["late", of("late_rows")]] },
    { title: "Quarantined rows by run", say: whole, series: [["quarantined", of("quarantined_rows")]] },
    { title: "Duration by run", say: duration, series: [["took", of("duration_s")]] },
  ];
  return { times: times(of("started")), plots: filled(plots) };
}

/** Plots of the state in each savepoint: of all its files, and of each stateful operator. */
export function growthPlots(savepoints) {
  const taken = savepoints.filter((s) => s.taken).reverse();
  const states = taken.map((s) =>
    Object.fromEntries(s.queries.flatMap((q) => Object.entries(q.state).map(([name, size]) => [`${q.name} ${name}`, size]))),
  );
  const names = [...new Set(states.flatMap(Object.keys))];
  const plots = [
    { title: "Size of savepoints", say: bytes, series: [["all files", taken.map((s) => s.bytes)]] },
    { title: "State by operator", say: bytes, series: names.map((name) => [name, states.map((sizes) => sizes[name] ?? null)]) },
  ];
  return { times: times(taken.map((s) => s.taken)), plots: filled(plots) };
}

function phasesOf(batches) {
  const sums = {};
  for (const batch of batches)
    for (const [name, ms] of phaseTimes(batch)) sums[name] = (sums[name] ?? 0) + ms;
  const names = Object.keys(sums).sort((a, b) => sums[b] - sums[a]);
  const known = (name) => (PHASES.includes(name) ? PHASES.indexOf(name) : PHASES.length);
  const shown = names.slice(0, MOST_PHASES).sort((a, b) => known(a) - known(b));
  const rest = names.slice(MOST_PHASES);
  const sum = (some) => batches.map((b) => b.duration_ms && some.reduce((ms, n) => ms + (b.duration_ms[n] ?? 0), 0));
  const series = shown.map((name) => [name, sum([name]), known(name)]);
  if (rest.length) series.push(["others", sum(rest), PHASES.length]);
  return series.length ? series : [["all", batches.map(totalMs)]];
}

/** Each series on top of those after it, so that the first is drawn first and the others over it. */
function stacked(series) {
  const tops = [];
  let below = series[0][1].map(() => 0);
  for (const [, values] of [...series].reverse()) {
    below = values.map((v, i) => (v === null ? null : (below[i] ?? 0) + v));
    tops.unshift(below);
  }
  return tops;
}

/** Plots with one cursor; *revision* changes with the values. */
export function Plots({ times, plots, marks = [], sync, revision }) {
  const theme = useTheme();
  const shown = marks.filter((m) => Date.parse(m.at) / 1000 >= times[0]);
  return html`<div className="ss-plots">
    ${plots.map((plot) => html`<${Plot} key=${plot.title} plot=${plot} times=${times} marks=${shown} theme=${theme} sync=${`ss-${sync}`} revision=${revision} />`)}
    ${shown.length ? html`<${Legend} marks=${shown} />` : null}
  </div>`;
}

function Legend({ marks }) {
  const newest = [...marks].sort((a, b) => (a.at < b.at ? 1 : -1)).slice(0, MOST_LISTED);
  return html`<details className="ss-muted ss-legend">
    <summary>Vertical lines: solid for a new attempt, dashed for a savepoint</summary>
    <ul>${newest.map((m) => html`<li key=${m.kind + m.text}>${moment(m.at)}: ${m.kind === "savepoint" ? "savepoint " : ""}${m.text}</li>`)}</ul>
  </details>`;
}

function Plot({ plot, times, marks, theme, sync, revision }) {
  const place = React.useRef(null);
  const chart = React.useRef(null);
  const near = React.useRef(null);
  const labels = plot.series.map(([label]) => label).join();
  const current = React.useRef({}); // what callbacks of the plot see, which is made once
  current.current = { plot, marks };
  const tops = plot.isStacked ? stacked(plot.series) : plot.series.map(([, values]) => values);
  const data = [times, ...tops];
  React.useEffect(() => {
    const [element, note] = [place.current, near.current]; // which the page forgets before the plot ends
    const width = () => Math.max(200, element.clientWidth);
    const options = optionsOf(current, width(), sync);
    options.hooks.setCursor = [(u) => (note.textContent = textNear(u, current.current.marks))];
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
  React.useEffect(() => chart.current?.setData(data), [revision]);
  const last = plot.series.map(([label, values]) => `${label} ${plot.say(values.at(-1))}`).join(", ");
  return html`<figure className="ss-plot" role="img" aria-label=${`${plot.title}, last: ${last}`}>
    <figcaption>${plot.title} <small ref=${near} aria-hidden="true"></small></figcaption>
    <div ref=${place}></div>
  </figure>`;
}

function optionsOf(current, width, sync) {
  const { plot } = current.current;
  const [text, line] = [colour("fg-muted"), colour("border-emphasized")];
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
  const series = plot.series.map(([label, values, number], i) => {
    const stroke = colour(`${COLOURS[(number ?? i) % COLOURS.length]}-500`);
    return {
      label,
      stroke,
      width: 1.5,
      fill: plot.isStacked ? stroke : undefined,
      points: { show: values.length < 3 },
      spanGaps: false,
      // Of the series itself, since a stacked one is drawn on top of others.
      value: (_, __, ___, at) => plot.say(current.current.plot.series[i][1].at(at ?? -1)),
    };
  });
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: sync }, y: false, points: { size: 6 } },
    legend: { live: true },
    scales: { x: { range: timeRange }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.05] } },
    axes: [{ ...axis, space: 70, size: 32, values: clockTimes }, { ...axis, size: 76, incrs: plot.say === whole ? WHOLE_STEPS : undefined, values: (_, ticks) => ticks.map(plot.say) }],
    series: [{ label: "at", value: (u, at) => clockTime(at ?? u.data[0].at(-1)) }, ...series],
    hooks: { draw: [(u) => drawMarks(u, current.current.marks)] },
  };
}

/** The times from the first to the last one; around a single one a minute, where the library takes years. */
function timeRange({ data: [times] }, low, high) {
  const [first, last] = [times[0], times.at(-1)];
  return first === last ? [first - HALF_S, first + HALF_S] : [low, high];
}

const clockTime = (seconds) => moment(new Date(seconds * 1000).toISOString()).slice(11);

function clockTimes(_, ticks) {
  const isLong = ticks.length > 1 && ticks.at(-1) - ticks[0] > 86400;
  return ticks.map((t) => {
    const said = moment(new Date(t * 1000).toISOString());
    return isLong ? said.slice(5, 16) : said.slice(11, ticks[1] - ticks[0] < 60 ? 19 : 16);
  });
}

/** What is marked where the cursor stands. */
function textNear(u, marks) {
  const { left } = u.cursor;
  if (left === null || left === undefined || left < 0) return "";
  const away = (m) => Math.abs(u.valToPos(Date.parse(m.at) / 1000, "x") - left);
  const found = marks.filter((m) => away(m) <= NEAR_PX).sort((a, b) => away(a) - away(b))[0];
  return found ? `${found.text}, ${moment(found.at).slice(11)}` : "";
}

function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  const inside = marks
    .map((mark) => [mark, Date.parse(mark.at) / 1000])
    .filter(([, at]) => at >= u.scales.x.min && at <= u.scales.x.max);
  const isCrowded = inside.filter(([mark]) => mark.kind === "savepoint").length > MOST_LINES;
  ctx.save();
  ctx.lineWidth = 1;
  for (const [{ kind }, at] of inside) {
    const x = Math.round(u.valToPos(at, "x", true));
    ctx.strokeStyle = colour(kind === "attempt" ? "fg-error" : "fg-muted");
    ctx.setLineDash(kind === "attempt" ? [] : [4, 4]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + (isCrowded && kind === "savepoint" ? 4 : bbox.height));
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
