// Loading: asks when the page or its question changes, again at each beat of the live stream where the page wants that.

import { useEffect, useState } from "./vendor/preact-htm.js";
import { ask } from "./api.js";

export function useAnswer(path, query = {}, beat = 0) {
  const [state, setState] = useState({ answer: null, problem: null, asked: "" });
  const key = path === null ? "" : path + "?" + JSON.stringify(query);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    ask(path, query, stop.signal).then(
      (answer) => setState({ answer, problem: null, asked: key }),
      (problem) => {
        if (problem.name !== "AbortError") setState((before) => ({ answer: before.asked === key ? before.answer : null, problem, asked: key }));
      },
    );
    return () => stop.abort();
  }, [key, beat]);
  return state.asked === key ? state : { answer: null, problem: null, asked: key };
}
