// Loading: asks when the page or its question changes, again at each beat of the live stream where the page wants that.

import { useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { ask } from "./api.js";

export function useAnswer(path, query = {}, beat = 0) {
  const [state, setState] = useState({ answer: null, problem: null, asked: "" });
  const asking = useRef(null); // of the question that is under way: a beat does not begin it anew, for a slow one would never be answered
  const key = path === null ? "" : path + "?" + JSON.stringify(query);
  const load = () => {
    const stop = new AbortController();
    asking.current = stop;
    const over = () => { if (asking.current === stop) asking.current = null; };
    ask(path, query, stop.signal).then(
      (answer) => {
        over();
        if (!stop.signal.aborted) setState({ answer, problem: null, asked: key });
      },
      (problem) => {
        over();
        if (!stop.signal.aborted) setState((before) => ({ answer: before.asked === key ? before.answer : null, problem, asked: key }));
      },
    );
  };
  useEffect(() => {
    if (path === null) return undefined;
    load();
    return () => {
      if (asking.current) asking.current.abort();
      asking.current = null;
    };
  }, [key]);
  useEffect(() => {
    if (path !== null && beat && !asking.current) load();
  }, [beat]);
  return state.asked === key ? state : { answer: null, problem: null, asked: key };
}
