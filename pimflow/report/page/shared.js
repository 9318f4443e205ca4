"use strict";
// Common to the scripts of all pages. All texts are data: they are set as text, never as markup.
const all = (what, within = document) => [...within.querySelectorAll(what)];
const one = (what, within = document) => within.querySelector(what);
const root = document.documentElement;
root.classList.add("script");

// Tool tips: the titles of marks, shown immediately and next to the pointer; screen readers still read them.
const tip = one("#tip");
for (const title of all("svg title")) {
  const mark = title.parentElement;
  mark.dataset.tip = title.textContent;
  mark.setAttribute("aria-label", title.textContent);
  title.remove();
}
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
  tip.hidden = mark === null;
  if (mark === null) return;
  tip.textContent = mark.dataset.tip;
  const above = event.clientY + 18 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${above ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
});
