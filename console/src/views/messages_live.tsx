// A live tail on the page: what comes, how much of it is shown, pause.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Topic } from "../api/types";
import { Empty } from "../parts/basics";
import { SelectField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { State } from "../parts/status";
import { follow, type Live } from "../state/live";
import { command } from "../text/command";
import { bytes, count } from "../text/numbers";
import { FilterProblem, Rows } from "./messages_rows";
import { parametersOf, type Wanted } from "./messages_query";

const RATES = ["20", "200", "1000", "5000"] as const;
type Rate = (typeof RATES)[number];

interface Props {
  readonly topic: Topic;
  readonly wanted: Wanted;
  readonly onWhereWrong: (isWrong: boolean) => void;
}

export function LiveMessages({ topic, wanted, onWhereWrong }: Props): JSX.Element {
  const [rate, setRate] = useState<Rate>("200");
  const [live, setLive] = useState<Live | null>(null);
  const question = JSON.stringify({ ...wanted, from: "", limit: 0 });
  useEffect(() => {
    const mine = follow(api.messages.livePath(topic.name), { ...parametersOf(wanted), from: "latest", limit: null, rate });
    setLive(mine);
    return mine.stop;
  }, [topic.name, question, rate]);
  const problem = live?.problem.value ?? null;
  const isRefused = live?.state.value === "ended" && problem?.status === 422;
  useEffect(() => onWhereWrong(isRefused && wanted.where !== ""), [isRefused]);
  if (!live) return <></>;
  const { rows, received, progress, perSecond } = live.view.value;
  const isPaused = live.isPaused.value;
  return (
    <>
      <div class="live-bar">
        <LiveState live={live} />
        <button type="button" class="button small" aria-pressed={isPaused} onClick={() => (live.isPaused.value = !isPaused)}>
          <Icon name={isPaused ? "play" : "pause"} />
          {isPaused ? "Go on" : "Pause"}
        </button>
        <button type="button" class="button small" onClick={live.clear}>
          Clear
        </button>
        <SelectField label="At most" isHiddenLabel value={rate} onChange={setRate} choices={RATES.map((value) => ({ value, label: `At most ${count(Number(value))}/s` }))} />
        <span class="live-numbers">
          <span>{count(perSecond)}/s</span>
          <span>{count(received)} shown</span>
          {progress && progress.dropped > 0 && <span title="More came than is shown in a second; they are counted, not shown">{count(progress.dropped)} left out</span>}
          {progress && <span>{bytes(progress.read.bytes)} read</span>}
        </span>
      </div>
      <Spoken received={received} />
      {live.state.value === "ended" && problem && <FilterProblem problem={problem} text={wanted.where} />}
      {!(isRefused && rows.length === 0) && (
        <Rows
          topic={topic.name}
          wanted={wanted}
          rows={rows}
          empty={
            <Empty title="Waiting for records" icon="clock" command={`echo '{"hello": "world"}' | ${command("produce", topic.name)}`}>
              What is produced from now on appears here{wanted.where || wanted.grep || wanted.key ? ", if it fulfils the filter" : ""}.
            </Empty>
          }
        />
      )}
    </>
  );
}

function LiveState({ live }: { readonly live: Live }): JSX.Element {
  const problem = live.problem.value;
  switch (live.state.value) {
    case "connecting":
      return <State tone="quiet">Connecting</State>;
    case "open":
      return live.isPaused.value ? <State tone="info">Paused; records still come</State> : <State tone="ok">Live</State>;
    case "broken":
      return <State tone="warn">Connecting again: {problem?.title.toLowerCase() ?? "the connection broke"}</State>;
    case "ended":
      return <State tone="bad">Ended</State>;
  }
}

/** Says the number now and then, not with each record. */
function Spoken({ received }: { readonly received: number }): JSX.Element {
  const [text, setText] = useState("");
  const [latest] = useState({ received });
  latest.received = received;
  useEffect(() => {
    const timer = setInterval(() => setText(`${count(latest.received)} records shown`), 10_000);
    return () => clearInterval(timer);
  }, []);
  return (
    <span class="visually-hidden" aria-live="polite">
      {text}
    </span>
  );
}
