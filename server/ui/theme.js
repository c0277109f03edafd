// Runs before the first paint, so that the page does not flash in the other colours.
"use strict";
try {
  const theme = localStorage.getItem("lockstep.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's colours stay.
}
