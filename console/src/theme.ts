// Sets the theme that the person has chosen before anything is painted. A classic script, so that
// the page never flashes in the other theme. Owns: nothing; state/preferences.ts writes the choice.

(() => {
  try {
    const chosen = localStorage.getItem("moldau.theme");
    if (chosen === "light" || chosen === "dark") {
      document.documentElement.dataset["theme"] = chosen;
    }
  } catch {
    // Storage may be switched off: the system's theme then holds.
  }
})();
