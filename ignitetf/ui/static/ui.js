// What the pages cannot do without script: some keys, and a word when the server is gone.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("form.sql textarea")) {
    event.target.form.requestSubmit();
  }
});
const neighbours = { n: "next", p: "prev" };
document.addEventListener("keydown", (event) => {
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (plain && event.key in neighbours && !event.target.matches("input, textarea")) {
    document.querySelector(`a[rel=${neighbours[event.key]}]`)?.click();
  }
});
const gone = document.getElementById("gone");
for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, () => { gone.hidden = false; });
}
document.addEventListener("htmx:afterOnLoad", () => { gone.hidden = true; });
