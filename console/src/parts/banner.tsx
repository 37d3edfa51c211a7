// What is wrong now, above every view: the console's server does not answer, or brokers do not. The
// view below stays, with what was known last.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { answeredAt, overview, problem } from "../state/overview";
import { BASE, place } from "../state/routes";
import { clock } from "../text/numbers";
import { Icon } from "./icons";

export function Banner(): JSX.Element {
  return (
    <div class="banners" role="status" aria-live="polite">
      {problem.value?.isUnreachable ? <Unreachable /> : <Brokers />}
    </div>
  );
}

function Unreachable(): JSX.Element {
  const since = answeredAt.value;
  const others = useOtherConsoles();
  return (
    <div class="banner bad">
      <Icon name="warning" />
      <div>
        <b>The node that serves this page does not answer.</b>{" "}
        {since === null ? "It is asked again every two seconds." : `What is shown was true at ${clock(since)}. It is asked again every two seconds.`}
        {others.length > 0 && (
          <>
            {" "}
            Go on at{" "}
            {others.map((other, index) => (
              <span key={other.url}>
                {index > 0 && ", "}
                <a href={other.url} rel="noreferrer">
                  node {other.broker_id}
                </a>
              </span>
            ))}
            .
          </>
        )}
      </div>
    </div>
  );
}

function useOtherConsoles(): readonly { readonly broker_id: number; readonly url: string }[] {
  const known = overview.value?.consoles ?? [];
  const [kept, setKept] = useState(known);
  useEffect(() => {
    if (known.length > 0) setKept(known);
  }, [known]);
  return kept
    .filter((other) => /^https?:\/\//.test(other.url) && !other.url.startsWith(window.location.origin))
    .map((other) => ({
      broker_id: other.broker_id,
      url: `${other.url.replace(/\/console\/?$/, "")}${BASE}${place.value.path}${window.location.search}`,
    }));
}

function Brokers(): JSX.Element | null {
  const lost = overview.value?.brokers.filter((broker) => !broker.is_reachable) ?? [];
  if (lost.length === 0) return null;
  const names = lost.map((broker) => broker.broker_id).join(", ");
  return (
    <div class="banner warn">
      <Icon name="warning" />
      <div>
        <b>{lost.length === 1 ? `Broker ${names} does not answer.` : `Brokers ${names} do not answer.`}</b> Partitions that it led
        are led by other replicas of their ISR; the page goes on from the brokers that answer.
      </div>
    </div>
  );
}
