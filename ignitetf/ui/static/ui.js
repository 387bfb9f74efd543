// What the pages cannot do without script: one key, and a word when the server is gone.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("form.sql textarea")) {
    event.target.form.requestSubmit();
  }
});
const gone = document.getElementById("gone");
for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, () => { gone.hidden = false; });
}
document.addEventListener("htmx:afterOnLoad", () => { gone.hidden = true; });
