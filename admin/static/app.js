// The dashboard: a page for each question. Which page, and what it is asked, stands in the address behind the #.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { ask, change, follow, remember } from "./api.js";
import { Failure } from "./parts.js";
import { counted } from "./words.js";
import { List, LISTS } from "./pages/lists.js";
import { AlarmPage, Audits, Overview } from "./pages/overview.js";
import { Client, Message, Topic, Traces } from "./pages/stories.js";
import { Nodes, Plain, Ring, Routers, Tokens, Users } from "./pages/verbs.js";

const plain = (title, question, path, cli) => (props) => html`<${Plain} title=${title} question=${question} path=${path} cli=${cli} ...${props} />`;
const list = (name) => [LISTS[name].title, (props) => html`<${List} page=${LISTS[name]} ...${props} />`];

const PAGES = {
  overview: ["Overview", Overview], alarms: ["Alarms", AlarmPage], nodes: ["Nodes", Nodes], clients: list("clients"), client: ["One client", Client],
  topics: ["Topics", Topic], message: ["Message", Message], subscriptions: list("subscriptions"), shares: list("shares"), sessions: list("sessions"),
  retained: list("retained"), routes: list("routes"), ring: ["Ring", Ring], operations: list("operations"), audits: ["Audits", Audits],
  routers: ["Routers", Routers],
  members: ["Members", plain("Members", "Whom does gossip see?", "/membership", "stratamq membership list")],
  storage: list("storage"), slow: list("slow"), drops: list("drops"), journal: list("journal"), traces: ["Traces", Traces],
  listeners: list("listeners"), users: ["Users and bans", Users], tokens: ["Tokens", Tokens], logs: list("logs"), config: list("config"),
};

function place() {
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: PAGES[path] ? path : "overview", query: Object.fromEntries(new URLSearchParams(text || "")) };
}

function Login({ done, problem }) {
  const [token, setToken] = useState("");
  const [failed, setFailed] = useState(problem);
  const send = async (event) => {
    event.preventDefault();
    try {
      done(await change("POST", "/login", {}, { token }));
    } catch (error) {
      setFailed(error);
    }
  };
  return html`<main id="main"><h1>StrataMQ</h1><p class="question">A token of <code>stratamq token create</code> opens this page.</p>
    <form class="row" onSubmit=${send}><label>token <input type="password" autocomplete="off" required value=${token} onInput=${(event) => setToken(event.target.value)} /></label><button type="submit">Log in</button></form>
    <${Failure} problem=${failed} /></main>`;
}

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || "");
  const next = { "": "dark", dark: "light", light: "" }[theme];
  const turn = () => {
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    setTheme(next);
  };
  return html`<button type="button" onClick=${turn}>Colours: ${theme || "as the system"}</button>`;
}

function Frame({ me, leave, ended }) {
  const [at, setAt] = useState(place());
  const [figures, setFigures] = useState({ beat: 0 });
  const [live, setLive] = useState("connecting");
  useEffect(() => {
    const moved = () => setAt(place());
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => follow((told) => { setFigures(told); setLive(`live, ${counted(told.connections, "client")}`); }, () => setLive("not live: connecting again"), ended), []);
  const [title, Page] = PAGES[at.page];
  useEffect(() => { document.title = `${title} - ${me.cluster} - StrataMQ`; }, [title]);
  const go = (query) => {
    const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined)).toString();
    location.hash = `#/${at.page}${text ? "?" + text : ""}`;
  };
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>To the page</a>
    <div class="frame"><header><span class="name">StrataMQ ${me.cluster}</span><span>${live}</span><span>${me.name} (${me.role})</span><${Theme} /><button type="button" onClick=${leave}>Log out</button></header>
    <nav aria-label="Pages"><ul>${Object.entries(PAGES).map(([name, [label]]) => html`<li key=${name}><a href=${`#/${name}`} aria-current=${name === at.page ? "page" : undefined}>${label}</a></li>`)}</ul></nav>
    <main id="main" tabindex="-1"><${Page} key=${at.page + (at.query.id || "")} query=${at.query} go=${go} me=${me} beat=${figures.beat} rates=${figures.rates} /></main></div>`;
}

function App() {
  const [me, setMe] = useState(null);
  const [problem, setProblem] = useState(null);
  const [asked, setAsked] = useState(false);
  const known = (answer) => {
    if (!answer || !answer.name) return; // nobody is logged in
    remember(answer);
    setMe(answer);
  };
  useEffect(() => {
    const code = new URLSearchParams(location.hash.replace(/^#\/?\??/, "")).get("code");
    const first = code ? change("POST", "/login", {}, { code }) : ask("/login");
    if (code) history.replaceState(null, "", location.pathname);
    first.then(known, setProblem).finally(() => setAsked(true));
  }, []);
  if (!asked) return html`<p role="status">…</p>`;
  if (!me) return html`<${Login} done=${known} problem=${problem} />`;
  const leave = async () => {
    await change("POST", "/logout");
    setMe(null);
  };
  const ended = (reason) => {
    setProblem(reason);
    setMe(null);
  };
  return html`<${Frame} me=${me} leave=${leave} ended=${ended} />`;
}

render(html`<${App} />`, document.getElementById("app"));
