// The parts that pages are made of: tables, facts, charts, forms that change something, and what can be copied.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { change, curl, Problem, quoted } from "./api.js";
import { counted, heading, printable, shown } from "./words.js";

const LONG = 40; // characters of a cell that may be broken into lines

export function Failure({ problem }) {
  if (!problem) return null;
  return html`<div class="problem" role="alert"><strong>${problem.message}</strong>${problem.what ? html`<br />${problem.what}` : null}</div>`;
}

// While an answer is under way: an empty page would look like one.
export function Asking({ state, wanted }) {
  return wanted && !state.answer && !state.problem ? html`<p role="status">Asking the nodes …</p>` : null;
}

export function Partial({ page }) {
  if (!page) return null;
  const missing = page.partial || [];
  return html`
    ${missing.length ? html`<div class="notice" role="status">Not complete: ${missing.map((one) => `${one.node}: ${one.why}`).join("; ")}</div>` : null}
    ${(page.restarted || []).length ? html`<div class="notice" role="status">Began anew, so rows may come twice: ${page.restarted.join(", ")}</div>` : null}`;
}

export function Table({ caption, rows, columns, links = {}, empty = "Nothing.", total = "", mark = () => "" }) {
  const names = columns.filter((name) => rows.some((row) => row[name] !== undefined && row[name] !== null && row[name] !== ""));
  if (!rows.length) return html`<p>${empty}</p>`;
  const numeric = (name) => rows.every((row) => row[name] === undefined || row[name] === null || typeof row[name] === "number");
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption>${caption}: ${counted(rows.length, "row")}${total}</caption>
      <thead><tr>${names.map((name) => html`<th scope="col" key=${name} class=${numeric(name) ? "number" : ""}>${heading(name)}</th>`)}</tr></thead>
      <tbody>${rows.map((row, at) => html`<tr key=${at}>${names.map((name) => {
        const text = shown(name, row[name]);
        const kind = [numeric(name) ? "number" : text.length > LONG ? "long" : "", mark(name, row[name])].filter(Boolean).join(" ");
        return html`<td key=${name} class=${kind}>${links[name] && row[name] ? html`<a href=${links[name](row)}>${text}</a>` : text}</td>`;
      })}</tr>`)}</tbody>
    </table>
  </div>`;
}

// A table of what was asked for; until the answer is there it says so, for an empty table would be a wrong answer.
export function Answered({ state, name = "rows", from = (answer) => answer[name] || [], ...table }) {
  if (!state.answer) return state.problem ? html`<p>${state.problem.message}</p>` : html`<p role="status">Asking the nodes …</p>`;
  return html`<${Failure} problem=${state.problem} /><${Partial} page=${state.answer} /><${Table} ...${table} rows=${from(state.answer)} />`;
}

export function Facts({ facts, names }) {
  const listed = (names || Object.keys(facts)).filter((name) => facts[name] !== undefined && facts[name] !== null && facts[name] !== "" && !(typeof facts[name] === "object" && !Object.keys(facts[name]).length));
  if (!listed.length) return null;
  return html`<dl class="facts">${listed.map((name) => html`<dt key=${name}>${heading(name)}</dt><dd>${shown(name, facts[name])}</dd>`)}</dl>`;
}

export function Cards({ cards }) {
  return html`<dl class="cards">${cards.map(([name, value, state]) => html`<div key=${name}><dt>${name}</dt><dd class=${state || ""}>${value}</dd></div>`)}</dl>`;
}

// Times below a chart are UTC, as everywhere on these pages; of more than two days they are dates.
const utc = (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
function stamps(chart, ticks) {
  const span = chart.scales.x.max - chart.scales.x.min;
  return ticks.map((tick) => {
    const text = new Date(tick * 1000).toISOString();
    return span > 172800 ? text.slice(0, 10) : text.slice(11, span < 300 ? 19 : 16);
  });
}

// Two lines at most: time, and one series for each name; the last values stand below it as text.
export function Chart({ title, names, series }) {
  const place = useRef(null);
  const made = useRef(null);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colours = [style.getPropertyValue("--link"), style.getPropertyValue("--warn"), style.getPropertyValue("--good")];
    const ink = style.getPropertyValue("--soft").trim();
    const width = () => Math.max(200, place.current.clientWidth);
    const axis = { stroke: ink, size: 44, grid: { stroke: style.getPropertyValue("--line").trim(), width: 1 }, ticks: { show: false } };
    made.current = new window.uPlot({
      width: width(), height: 160, legend: { show: false }, cursor: { show: false }, axes: [{ ...axis, size: 28, values: stamps }, axis], tzDate: utc,
      series: [{}, ...names.map((name, at) => ({ label: name, stroke: colours[at % 3].trim(), width: 2, dash: at ? [6, 3 * at] : [] }))],
    }, series, place.current);
    const sized = () => made.current.setSize({ width: width(), height: 160 });
    window.addEventListener("resize", sized);
    return () => {
      window.removeEventListener("resize", sized);
      made.current.destroy();
    };
  }, [names.join()]);
  useEffect(() => {
    if (made.current) made.current.setData(series);
  }, [series]);
  const last = names.map((name, at) => `${name} ${shown("", (series[at + 1] || []).at(-1))}`).join(", ");
  return html`<figure class="chart"><figcaption>${title}: ${last} (times are UTC)</figcaption><div ref=${place} aria-hidden="true"></div></figure>`;
}

// A change: says what would happen first, and asks once more where something is lost.
export function Change({ label, method, path, query = {}, body, danger = false, done, enabled = true }) {
  const [tried, setTried] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const dialog = useRef(null);
  const go = async (dry) => {
    setBusy(true);
    setProblem(null);
    try {
      const result = await change(method, path, dry ? { ...query, dry_run: true } : query, body);
      if (dry) {
        setTried(result);
        dialog.current.showModal();
      } else {
        dialog.current.close();
        setTried(null);
        if (done) done(result);
      }
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      setProblem(error);
    }
    setBusy(false);
  };
  return html`<span>
    <button type="button" class=${danger ? "danger" : ""} disabled=${busy || !enabled} onClick=${() => go(true)}>${label}</button>
    <dialog ref=${dialog} aria-label=${label}>
      <h2>${label}</h2>
      ${tried ? html`<${Facts} facts=${tried} />` : null}
      <${Failure} problem=${problem} />
      <div class="row">
        <button type="button" class=${danger ? "danger" : ""} disabled=${busy} onClick=${() => go(false)}>${danger ? "Do it" : "Go on"}</button>
        <button type="button" onClick=${() => dialog.current.close()}>Leave it</button>
      </div>
    </dialog>
    ${dialog.current && dialog.current.open ? null : html`<${Failure} problem=${problem} />`}
  </span>`;
}

export function Copies({ cli, path, query }) {
  const [said, setSaid] = useState("");
  const copy = async (text, name) => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid(`${name} copied`);
    } catch {
      setSaid(text);
    }
  };
  return html`<footer>
    ${cli ? html`<button type="button" class="link" onClick=${() => copy(cli, "command")}>copy as CLI</button>` : null}
    ${path ? html`<button type="button" class="link" onClick=${() => copy(curl(path, query), "curl")}>copy as curl</button>` : null}
    ${cli ? html`<code>${printable(cli)}</code>` : null}
    <span role="status">${said}</span>
  </footer>`;
}

// Conditions as `column=pattern`, * and ? allowed; they stand in the page's address.
export function Conditions({ columns, query, go }) {
  const [column, setColumn] = useState(columns[0]);
  const [pattern, setPattern] = useState("");
  const add = (event) => {
    event.preventDefault();
    if (pattern) go({ ...query, [column]: pattern, cursor: "" });
    setPattern("");
  };
  const active = Object.entries(query).filter(([name, value]) => columns.includes(name) && value);
  return html`<form class="row" onSubmit=${add}>
    <label>column <select value=${column} onChange=${(event) => setColumn(event.target.value)}>${columns.map((name) => html`<option key=${name} value=${name}>${heading(name)}</option>`)}</select></label>
    <label>is, with * and ? <input value=${pattern} onInput=${(event) => setPattern(event.target.value)} /></label>
    <button type="submit">Filter</button>
    ${active.map(([name, value]) => html`<button type="button" key=${name} onClick=${() => go({ ...query, [name]: "", cursor: "" })}>${heading(name)} ${printable(value)}: remove</button>`)}
  </form>`;
}

export function cliFilters(query, columns) {
  return columns.filter((name) => query[name]).map((name) => ` --filter ${quoted(`${name}=${query[name]}`)}`).join("");
}
