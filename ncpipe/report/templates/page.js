"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- tables: sorted by a click on a heading, filtered by words -----------------------------------------

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    return "v" in cell.dataset ? Number(cell.dataset.v.replace("inf", "Infinity")) : cell.textContent;
  };
  const compare = (one, other) => {
    if (one === "" || other === "") return (one === "") - (other === ""); // what is missing comes last
    if (typeof one === "number" && typeof other === "number") return one - other;
    if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
    return one.localeCompare(other, "en", { numeric: true });
  };

  function sortBy(table, heading) {
    const column = heading.cellIndex;
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of all("th", table)) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
    rows.sort(([one], [other]) => {
      const missing = one === "" || other === "";
      return compare(one, other) * (up || missing ? 1 : -1);
    });
    body.append(...rows.map(([, row]) => row));
  }

  for (const table of all("table[data-grid]")) {
    for (const heading of all("th", table)) {
      heading.querySelector("button").addEventListener("click", () => sortBy(table, heading));
    }
  }
  for (const input of all("input[data-filter]")) {
    input.addEventListener("input", () => {
      const name = input.dataset.filter;
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const rows = all(`table[data-grid="${name}"] tbody tr`);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
      const shown = rows.filter((row) => !row.hidden).length;
      document.querySelector(`[data-count="${name}"]`).textContent =
        shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
    });
  }

  // ---- tables wider than their box say so -------------------------------------------------------------------

  const markWide = () => {
    for (const box of all(".scroll")) box.toggleAttribute("data-wide", box.scrollWidth > box.clientWidth + 1);
  };
  markWide();
  window.addEventListener("resize", markWide);
  for (const folded of all("details")) folded.addEventListener("toggle", markWide);

  // ---- figures: a click enlarges ---------------------------------------------------------------------------

  const large = at("large");
  for (const button of all("button.zoom")) {
    button.addEventListener("click", () => {
      large.querySelector("div").replaceChildren(button.querySelector("img").cloneNode());
      large.showModal();
    });
  }

  // ---- charts ----------------------------------------------------------------------------------------------

  if (!at("data")) return;
  const data = JSON.parse(at("data").textContent);
  const RAMP = ["#3d6fd0", "#8a5cc0", "#c2447d", "#d4572e", "#c28a00"];
  const colour = (line) => data.colours[line];

  /** n colours from the first of RAMP to its last. */
  function ramp(n) {
    const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return Array.from({ length: n }, (_, i) => {
      const place = n > 1 ? (i / (n - 1)) * (RAMP.length - 1) : 0;
      const low = Math.min(Math.floor(place), RAMP.length - 2);
      const mixed = parts(RAMP[low]).map((a, j) => a + (place - low) * (parts(RAMP[low + 1])[j] - a));
      return `#${mixed.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("")}`;
    });
  }

  const element = (name, text) => Object.assign(document.createElement(name), { textContent: text });
  const distinct = (values) => [...new Set(values)];
  const ascending = (values) => distinct(values).sort((a, b) => a - b);
  const say = (value) => (value === null ? "none" : Number(value.toPrecision(4)).toString());
  const fill = (select, options, chosen) => {
    select.replaceChildren(
      ...options.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))),
    );
  };

  // currentColor: the page's own ink, so light, dark and printed pages need no other chart
  const CONFIG = {
    background: null,
    font: "system-ui, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif",
    axis: {
      labelColor: "currentColor", titleColor: "currentColor", domainColor: "currentColor", tickColor: "currentColor",
      gridColor: "currentColor", gridOpacity: 0.12, domainOpacity: 0.5, tickOpacity: 0.5,
      labelFontSize: 12, titleFontSize: 13, titleFontWeight: 500, labelFlush: false,
    },
    legend: {
      labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 12, titleFontSize: 12, labelLimit: 0,
      orient: "bottom", titleFontWeight: 500,
    },
    header: { labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 12 },
    view: { stroke: null },
  };

  const views = {};
  /** Draw a chart in place of the one that is there; the last one asked for stays. */
  function draw(id, spec, says) {
    const token = (views[id]?.token ?? 0) + 1;
    const before = views[id]?.result;
    views[id] = { token, result: before };
    const title = says[0] ?? "";
    const options = { mode: "vega-lite", actions: false, renderer: "svg", config: CONFIG };
    const box = document.createElement("div");
    return vegaEmbed(box, { description: title, ...spec }, options).then((result) => {
      if (views[id].token !== token) return result.finalize();
      before?.finalize();
      views[id].result = result;
      at(id).replaceChildren(box);
    });
  }
  /** Text with L^-0.37 as a power. */
  function typeset(line) {
    return line.replace(/(^|[\s([])-(?=[\d.])/g, "$1−").split(/\^([-−]?[\d.]*\d)/).map((part, i) =>
      i % 2 ? element("sup", part.replace("-", "−")) : part);
  }
  function tell(id, lines) {
    at(id).replaceChildren(...lines.map((line) => {
      const made = document.createElement("p");
      made.append(...typeset(line));
      return made;
    }));
  }
  const widthOf = (id) => Math.max(200, Math.min(at(id).clientWidth - 80, 900));
  const columnsOf = (id) => Math.max(1, Math.floor(at(id).clientWidth / 190));

  function xScale(values) {
    const type = data.x.log ? "log" : "linear";
    const few = values.length <= 9 ? { values } : {};
    return {
      field: "x", type: "quantitative", title: data.x.label,
      scale: { type, nice: false, padding: 14, ...(data.x.log ? {} : { zero: false }) },
      axis: { ...few, format: "~g", labelOverlap: true },
    };
  }
  const yScale = (field, title, log) => ({
    field, type: "quantitative", title,
    scale: log ? { type: "log", nice: false, padding: 12 } : { zero: false, padding: 8 },
    axis: { format: "~g", tickCount: 6 },
  });

  /** Mean and ± 1 standard deviation of values on the scale that a chart has. */
  function spread(values, log) {
    const scaled = log ? values.map(Math.log10) : values;
    const mean = scaled.reduce((a, b) => a + b, 0) / scaled.length;
    const squares = scaled.reduce((a, b) => a + (b - mean) ** 2, 0);
    const std = scaled.length > 1 ? Math.sqrt(squares / (scaled.length - 1)) : 0;
    const back = log ? (v) => 10 ** v : (v) => v;
    return { mean: back(mean), low: back(mean - std), high: back(mean + std), n: scaled.length };
  }

  const lineColour = (lines, id) => ({
    field: "line", type: "nominal", title: null, sort: null,
    scale: { domain: lines.map((i) => data.lines[i]), range: lines.map(colour) },
    legend: { columns: columnsOf(id), symbolType: "circle", symbolStrokeWidth: 0, symbolOpacity: 1 },
  });
  const drawable = (value, log) => value !== null && (!log || value > 0);

  /** What a chart shows of run i, if its scale can: its value, and of what is not used the reason. */
  function runRow(i, y, reason, more) {
    const runs = data.runs;
    const state = runs.converged[i] ? reason || "converged" : `not converged: ${runs.reason[i]}`;
    return { line: data.lines[runs.line[i]], x: runs.x[i], y, seed: runs.seed[i], state, ...more };
  }
  const runTooltip = (title, format, ...more) => [
    { field: "line", title: "experiment" }, { field: "x", title: data.x.symbol }, { field: "seed" }, ...more,
    { field: "y", title, format }, { field: "state", title: "run" },
  ];

  /** Single runs with mean and spread. values, reasons, fits: of the series, or of one layer of it. */
  function runsSpec(series, lines, name = "") {
    const { values, reasons, fits: own, enter, format } = name
      ? { ...layerValues(series, name), fits: [], enter: (i) => data.runs.selected[i], format: ".3g" }
      : { ...series, enter: (i) => data.runs.selected[i] && !series.reasons[i], format: ".5g" };
    const rows = [];
    let hidden = 0;
    values.forEach((value, i) => {
      if (!lines.includes(data.runs.line[i])) return;
      if (!drawable(value, series.log)) { hidden += !name; return; }
      rows.push(runRow(i, value, reasons[i], { used: enter(i) ? "yes" : "no" }));
    });
    const means = [];
    const fits = [];
    for (const line of lines) {
      const name = data.lines[line];
      const members = rows.filter((row) => row.line === name);
      for (const x of ascending(members.map((row) => row.x))) {
        const used = members.filter((row) => row.x === x && row.used === "yes").map((row) => row.y);
        if (used.length) means.push({ line: name, x, ...spread(used, series.log) });
      }
      const fit = own.find((each) => each.line === line);
      const xs = means.filter((row) => row.line === name).map((row) => row.x);
      if (fit && fit.slope !== null && fit.at !== null && xs.length > 1) {
        for (const x of [Math.min(...xs), Math.max(...xs)]) {
          fits.push({ line: name, x, y: 10 ** (fit.at + fit.slope * Math.log10(x)) });
        }
      }
    }
    const colours = lineColour(lines, "panel");
    const x = xScale(ascending(rows.map((row) => row.x)));
    const y = yScale("y", series.title, series.log);
    const tooltip = [...runTooltip(series.title, format), { field: "used", title: name ? "in mean" : "in mean and slope" }];
    const layer = [
      { data: { values: means }, mark: { type: "rule", strokeWidth: 1.5, opacity: 0.6 },
        encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, color: colours } },
      { data: { values: means }, mark: { type: "tick", thickness: 2.5, size: 18, orient: "horizontal" },
        encoding: { x, y: { ...y, field: "mean" }, color: colours,
          tooltip: [{ field: "line", title: "experiment" }, { field: "x", title: data.x.symbol },
            { field: "mean", format: ".5g" }, { field: "low", title: "mean − 1 std", format: ".5g" },
            { field: "high", title: "mean + 1 std", format: ".5g" }, { field: "n", title: "runs" }] } },
      { data: { values: fits }, mark: { type: "line", strokeDash: [6, 4], strokeWidth: 1.5 },
        encoding: { x, y, color: colours } },
      ...["yes", "no"].map((used) => ({
        data: { values: rows.filter((row) => row.used === used) },
        mark: { type: "point", size: 55, strokeWidth: 1.4, filled: used === "yes",
          ...(used === "yes" ? { opacity: 0.55 } : { fill: "transparent" }), cursor: "pointer" },
        encoding: { x, y, color: colours, tooltip },
      })),
    ].filter((each) => each.data.values.length);
    const says = [`${series.title}: ${series.means}.`, ...own.filter((fit) => lines.includes(fit.line)).map((fit) => fit.says)];
    if (name) says.push(rows.length ? "Single runs, mean ± 1 standard deviation of those used." : "No run has a value here.");
    if (hidden) says.push(`${hidden} runs have no value that this scale can show.`);
    return [layer, `${series.title}${name ? ` of layer ${name}` : ""} against ${data.x.label}`, says];
  }

  // ---- layers: every run's network is one of data.layers.nets, which has the layers' names and positions ----

  const byLayer = (series) =>
    data.layers.series.find((each) => each.metric === series.metric && each.split === series.split);
  const placesOf = (i) => data.layers.nets[data.layers.which[i]];
  /** Of every run the value of one of its layers, null where it has none, and why it is in no slope. */
  function layerValues(series, name) {
    const own = byLayer(series);
    return {
      values: data.runs.line.map((_, i) => own?.values[i][placesOf(i).layer.indexOf(name)] ?? null),
      reasons: data.runs.line.map((_, i) => own?.reasons[i]?.[name]),
    };
  }

  /** Names of the layers at which some run has a value. */
  function layersOf(series) {
    const found = new Set();
    byLayer(series)?.values.forEach((values, i) => {
      values.forEach((value, j) => { if (value !== null) found.add(placesOf(i).layer[j]); });
    });
    return [...found];
  }

  function throughLayersSpec(series, lines) {
    const own = byLayer(series);
    const rows = [];
    const means = [];
    const places = new Map();
    own.values.forEach((values, i) => {
      if (!lines.includes(data.runs.line[i])) return;
      const { layer, position } = placesOf(i);
      layer.forEach((name, j) => {
        const value = values[j];
        if (!drawable(value, series.log)) return;
        const more = { layer: name, position: position[j], used: data.runs.selected[i] ? "yes" : "no" };
        const row = runRow(i, value, own.reasons[i]?.[name], more);
        rows.push(row);
        if (row.used === "no") return;
        const key = [row.line, row.x, name].join("\n");
        if (!places.has(key)) places.set(key, { line: row.line, x: row.x, position: position[j], own: [] });
        places.get(key).own.push(value);
      });
    });
    for (const { own, ...place } of places.values()) means.push({ ...place, ...spread(own, series.log) });
    const xs = ascending(rows.map((row) => row.x));
    const colours = {
      field: "x", type: "ordinal", title: data.x.symbol, scale: { domain: xs, range: ramp(xs.length) },
      legend: { columns: columnsOf("panel"), symbolType: "circle", symbolOpacity: 1 },
    };
    const x = { field: "position", type: "quantitative", title: "layer", axis: { format: "~g", tickMinStep: 1 },
      scale: { zero: false, nice: false, padding: 10 } };
    const y = yScale("y", series.title, series.log);
    const tooltip = runTooltip(series.title, ".3g", { field: "layer" });
    const there = (used) => rows.some((row) => row.used === used);
    const layer = [
      ...(means.length ? [{
        transform: [{ filter: "isValid(datum.mean)" }], mark: { type: "line", strokeWidth: 1.6 },
        encoding: { x, y: { ...y, field: "mean" }, color: colours },
      }] : []),
      ...["yes", "no"].filter(there).map((used) => ({
        transform: [{ filter: `datum.used === '${used}'` }],
        mark: { type: "point", size: 26, strokeWidth: 1.1, filled: used === "yes", cursor: "pointer",
          ...(used === "yes" ? { opacity: 0.45 } : { fill: "transparent" }) },
        encoding: { x, y, color: colours, tooltip },
      })),
    ].map((each) => ({ data: { values: [...means, ...rows] }, ...each }));
    return [rows.length ? layer : [], `${series.title} layer by layer`,
      rows.length ? ["Single runs; the lines join the means of those used, one for each network's depth."] : ["No run has a value here."]];
  }

  function chosenLines() {
    const boxes = all("#panel-choice input[name=line]");
    return boxes.filter((box) => box.checked).map((box) => Number(box.value));
  }
  const metricOf = (series) => series.metric;
  const chosenSeries = () =>
    data.series.find((each) => each.metric === at("metric").value && each.split === at("split").value);

  function setSplits() {
    const own = data.series.filter((each) => each.metric === at("metric").value);
    const before = at("split").value;
    const splits = own.map((each) => each.split).sort((a, b) => (a === "test") - (b === "test"));
    fill(at("split"), splits.map((split) => [split, split]), splits.includes(before) ? before : splits[0]);
  }
  function setLayers() {
    const series = chosenSeries();
    const own = byLayer(series);
    const names = layersOf(series).filter((name) => name !== "last");
    names.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const before = at("layer").value;
    fill(at("layer"), [["", "last"], ...names.map((name) => [name, name])], names.includes(before) ? before : "");
    at("against").options[1].disabled = !own;
    if (!own) at("against").value = "x";
  }

  function drawPanel() {
    setSplits();
    setLayers();
    const series = chosenSeries();
    const lines = chosenLines();
    const through = at("against").value === "layer";
    at("layer-label").hidden = through;
    const [layer, title, says] = through
      ? throughLayersSpec(series, lines)
      : runsSpec(series, lines, at("layer").value);
    tell("panel-says", lines.length ? says : ["Choose an experiment."]);
    if (!layer.length) return at("panel").replaceChildren();
    const description = [title, ...says].join(". ");
    const width = widthOf("panel");
    const spec = through && lines.length > 1
      ? { data: layer[0].data, facet: { row: { field: "line", title: null, sort: null,
          header: { labelAnchor: "start", labelOrient: "top" } } },
          spec: { width, height: 230, layer: layer.map(({ data: _, ...rest }) => rest) } }
      : { width, height: 380, layer };
    return draw("panel", spec, [description]);
  }

  function drawCurves() {
    const line = Number(at("curve-line").value);
    const name = at("quantity").value;
    if (!name) {
      tell("curves-say", ["No run has a row in its history."]);
      return at("curve-chart").replaceChildren();
    }
    const log = at("curve-scale").value === "log";
    const { history, runs } = data;
    const members = runs.line.flatMap((own, i) => (own === line ? [i] : []));
    const places = ascending(members.map((i) => runs.x[i]));
    const before = at("curve-x").value;
    fill(at("curve-x"), [["", "all"], ...places.map((x) => [x, x])], places.map(String).includes(before) ? before : "");
    const only = at("curve-x").value;
    const rows = [];
    let hidden = 0;
    for (const i of members) {
      if (only !== "" && String(runs.x[i]) !== only) continue;
      history.epochs[history.which[i]].forEach((epoch, j) => {
        const y = history.columns[name][i][j];
        if (!drawable(y, log)) { hidden += 1; return; }
        const state = runs.converged[i] ? "converged" : runs.reason[i];
        rows.push({ run: i, x: runs.x[i], seed: runs.seed[i], epoch, y, state });
      });
    }
    const label = history.titles[name];
    const says = [`${label} of ${data.lines[line]}, a line for each run.`];
    if (hidden) says.push(`${hidden} values are 0 or missing: a logarithmic scale has no place for them.`);
    tell("curves-say", says);
    if (!rows.length) return at("curve-chart").replaceChildren();
    const colours = {
      field: "x", type: "ordinal", title: data.x.symbol, scale: { domain: places, range: ramp(places.length) },
      legend: { columns: columnsOf("curve-chart"), symbolType: "stroke", symbolStrokeWidth: 3 },
    };
    const shared = {
      x: { field: "epoch", type: "quantitative", title: "epoch", scale: { nice: false }, axis: { tickCount: 6, format: ",d" } },
      y: yScale("y", label, log), detail: { field: "run", type: "nominal" },
    };
    const tooltip = [
      { field: "x", title: data.x.symbol }, { field: "seed" }, { field: "epoch" },
      { field: "y", title: label, format: ".5g" }, { field: "state", title: "run" },
    ];
    const near = { name: "near", select: { type: "point", on: "pointerover", nearest: true, fields: ["run"], clear: "pointerout" } };
    const layer = [
      { mark: { type: "line", interpolate: "linear" },
        encoding: { ...shared, color: colours,
          strokeWidth: { condition: { param: "near", empty: false, value: 3 }, value: 1.2 },
          opacity: { condition: { param: "near", value: 0.9 }, value: 0.3 },
          strokeDash: { condition: { test: "datum.state !== 'converged'", value: [4, 3] }, value: [1, 0] } } },
      { params: [near], mark: { type: "point", opacity: 0, size: 60 }, encoding: { ...shared, color: colours, tooltip } },
    ];
    return draw("curve-chart", { data: { values: rows }, width: widthOf("curve-chart"), height: 340, layer }, says);
  }

  const panel = data.series.length ? drawPanel : () => {}; // without a usable value there is no chooser
  const metrics = distinct(data.series.map(metricOf));
  const nameOf = (metric) => data.series.find((each) => each.metric === metric && each.split !== "test") ?? data.series.find((each) => each.metric === metric);
  if (at("metric")) fill(at("metric"), metrics.map((metric) => [metric, nameOf(metric).title.replace(/, test$/, "")]), metrics[0]);
  at("panel-choice")?.addEventListener("change", panel);
  at("curves-choice").addEventListener("change", drawCurves);
  for (const form of all("form.chooser")) form.addEventListener("submit", (event) => event.preventDefault());
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    panel();
    drawCurves();
  });
  Promise.all([panel(), drawCurves()]).then(() => { document.documentElement.dataset.drawn = "yes"; });
})();
