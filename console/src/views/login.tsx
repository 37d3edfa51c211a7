// Logging in: with a user's password or a bearer token, as the brokers' listener takes them.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { asProblem, type Problem } from "../api/problem";
import { AreaField, Segments, TextField } from "../parts/fields";
import { Mark } from "../parts/icons";
import { logIn, session, waysIn } from "../state/session";

export function Login(): JSX.Element {
  const ways = waysIn.value.length > 0 ? waysIn.value : (["password"] as const);
  const [way, setWay] = useState<"password" | "token">(ways[0] ?? "password");
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [token, setToken] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const wait = useCountdown(problem);
  useEffect(() => {
    document.title = "Log in · Moldau";
  }, []);
  const enter = async (): Promise<void> => {
    setBusy(true);
    setProblem(null);
    try {
      await logIn(way === "password" ? { username, password } : { token: token.trim() });
    } catch (error) {
      setProblem(asProblem(error));
      setPassword("");
    } finally {
      setBusy(false);
    }
  };
  const isFilled = way === "password" ? username !== "" && password !== "" : token.trim() !== "";
  return (
    <main class="centre" id="main" tabIndex={-1}>
      <form
        class="login"
        onSubmit={(event) => {
          event.preventDefault();
          if (isFilled && !isBusy && wait === 0) void enter();
        }}
      >
        <Mark size={40} />
        <h1>Log in to the cluster</h1>
        <p class="lead">The brokers decide what you may see and do, as for every other client.</p>
        {ways.length > 1 && (
          <Segments label="How" value={way} onChange={setWay} choices={[{ value: "password", label: "Password" }, { value: "token", label: "Token" }]} />
        )}
        {way === "password" ? (
          <>
            <TextField label="User" value={username} onChange={setUsername} autoComplete="username" autoFocus />
            <TextField label="Password" type="password" value={password} onChange={setPassword} autoComplete="current-password" />
          </>
        ) : (
          <AreaField label="Bearer token" rows={5} value={token} onChange={setToken} hint="A signed token (JWT) of your identity provider." />
        )}
        {problem && (
          <div class="problem" role="alert">
            <div>
              <p class="problem-title">
                {problem.isLoginNeeded ? "User or password is wrong" : problem.title}
                {problem.kafkaError && <code>{problem.kafkaError}</code>}
              </p>
              {problem.detail && <p class="problem-detail">{problem.detail}</p>}
            </div>
          </div>
        )}
        <button type="submit" class="button primary big" disabled={!isFilled || isBusy || wait > 0}>
          {isBusy ? "Logging in…" : wait > 0 ? `Wait ${wait} s` : "Log in"}
        </button>
        <p class="hint">{session.value ? `Cluster ${session.value.cluster_id}` : "Your password stays in the server's memory until you log out."}</p>
      </form>
    </main>
  );
}

/** Seconds until the server takes another attempt. */
function useCountdown(problem: Problem | null): number {
  const [left, setLeft] = useState(0);
  useEffect(() => {
    let rest = Math.ceil(problem?.retryAfterS ?? 0);
    setLeft(rest);
    if (rest === 0) return undefined;
    const timer = setInterval(() => {
      rest -= 1;
      setLeft(Math.max(0, rest));
      if (rest <= 0) clearInterval(timer);
    }, 1000);
    return () => clearInterval(timer);
  }, [problem]);
  return left;
}
