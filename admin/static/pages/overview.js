// The first page: alarms, figures of the cluster, and its last hour.

import { html } from "../vendor/preact-htm.js";
import { useAnswer } from "../load.js";
import { Cards, Chart, Copies, Failure, Partial, Table } from "../parts.js";
import { count, moment, seconds, size } from "../words.js";

export function Alarms({ alarms }) {
  if (!alarms) return null;
  if (!alarms.length) return html`<p class="good">No alarm: every rule is met.</p>`;
  return html`<ul aria-live="polite">${alarms.map((alarm) => html`<li key=${alarm.name + alarm.about} class=${alarm.severity === "critical" ? "bad" : "warn"}><strong>${alarm.severity}: ${alarm.sentence}</strong> since ${moment(alarm.since)}${alarm.do ? html`<br />${alarm.do}` : null}</li>`)}</ul>`;
}

export function Overview({ beat }) {
  const { answer, problem } = useAnswer("/overview", {}, beat);
  if (!answer) return html`<h1>Overview</h1><p class="question">Is it healthy?</p><${Failure} problem=${problem} />${problem ? null : html`<p role="status">Asking the nodes …</p>`}`;
  const { figures, history } = answer;
  const cards = [
    ["Clients", count(figures.connections)], ["Messages in, a second", count(Math.round(figures.in_per_s * 10) / 10)], ["Messages out, a second", count(Math.round(figures.out_per_s * 10) / 10)],
    ["Sessions", count(figures.sessions)], ["Oldest queued", seconds(figures.queue_oldest_s) || "none"],
    ["Copies", figures.copies_met ? "all in sync" : "some are missing", figures.copies_met ? "good" : "bad"],
    ["Nodes ready", `${figures.nodes_ready} of ${figures.nodes}`, figures.nodes_ready === figures.nodes ? "good" : "warn"],
    ["Certificates until", figures.tls_not_after ? moment(figures.tls_not_after).slice(0, 10) : "none"], ["Least free disk", size(figures.disk_free_bytes) || "not known"],
  ];
  const drops = Object.entries(answer.drops || {}).map(([reason, dropped]) => ({ reason, dropped }));
  return html`<h1>Overview</h1><p class="question">Is it healthy?</p><${Failure} problem=${problem} /><${Partial} page=${answer} />
    <h2>Alarms</h2><${Alarms} alarms=${answer.alarms} />
    <h2>Now</h2><${Cards} cards=${cards} />
    <h2>The last hour</h2>
    ${history.at.length > 1 ? html`<${Chart} title="Messages a second" names=${["in", "out"]} series=${[history.at, history.in_per_s, history.out_per_s]} />
      <${Chart} title="Clients" names=${["clients"]} series=${[history.at, history.connections]} />` : html`<p>A chart comes with the second look.</p>`}
    <h2>Dropped since the nodes began</h2><${Table} caption="Drops by reason" rows=${drops} columns=${["reason", "dropped"]} empty="Nothing was dropped." />
    <${Copies} cli="stratamq top --once" path="/overview" />`;
}

export function AlarmPage({ beat }) {
  const { answer, problem } = useAnswer("/alarms", {}, beat);
  return html`<h1>Alarms</h1><p class="question">What is wrong, and what was?</p><${Failure} problem=${problem} />
    ${answer ? html`<${Alarms} alarms=${answer.active} /><h2>Past</h2><${Table} caption="Past alarms" rows=${answer.past} columns=${["severity", "name", "about", "since", "ended_at", "sentence"]} empty="None since this service began." />` : null}
    <${Copies} cli="stratamq doctor" path="/alarms" />`;
}

// Red where something was lost, came twice or differs; the words say the same.
const auditMark = (name, value) => (value && ["lost", "duplicated", "replica_diff"].includes(name) ? "bad" : name === "verdict" ? (value === "clean" ? "good" : "bad") : "");

export function Audits({ beat }) {
  const { answer, problem } = useAnswer("/audits", {}, beat);
  const rows = answer ? answer.rows : [];
  const proven = rows.filter((row) => row.lost !== undefined).reverse();
  const series = [proven.map((row) => Date.parse(row.at) / 1000), proven.map((row) => row.lost), proven.map((row) => row.duplicated)];
  const empty = answer && answer.folder ? `No report is below ${answer.folder} yet: an audit job with its --output there leaves one.` : "The setting admin.audits_dir names no folder of reports.";
  return html`<h1>Audits</h1><p class="question">Was anything lost?</p><${Failure} problem=${problem} />
    ${proven.length > 1 ? html`<${Chart} title="Messages by audit" names=${["lost", "twice"]} series=${series} />` : null}
    ${answer ? html`<${Table} caption="Reports" rows=${rows} mark=${auditMark} empty=${empty}
      columns=${["report", "at", "verdict", "acked", "delivered", "queued", "expired", "dropped", "lost", "duplicated", "replica_diff", "findings", "found"]} />` : problem ? null : html`<p role="status">Asking …</p>`}
    <${Copies} cli="stratamq audit reports" path="/audits" />`;
}
