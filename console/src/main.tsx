// The page's start.

import { render } from "preact";
import { App } from "./app";
import { startKeys } from "./parts/keys";
import { startRouting } from "./state/routes";
import { start } from "./state/session";

const root = document.getElementById("root");
if (root) {
  startRouting();
  startKeys();
  render(<App />, root);
  void start();
}
