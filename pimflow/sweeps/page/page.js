// Links the panels of a sweep: a point selected in one is selected in all; points filtered out of the table are faded in
// the charts. The page is complete without it. All texts are data: they are set as text, never as markup.
(() => {
  const rows = all("#points-table tbody tr").map((row) => ({ row, point: row.dataset.p, text: row.textContent.toLowerCase() }));
  const byPoint = new Map(rows.map((item) => [item.point, item]));
  const marks = all("svg .mark");
  const headings = all("#points-table thead th");
  const inspector = one("#inspector");
  let chosen = null;

  const part = (name, text, className = "") => {
    const made = document.createElement(name);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const inspect = () => {
    inspector.replaceChildren();
    const item = byPoint.get(chosen);
    inspector.hidden = !item;
    root.classList.toggle("inspecting", Boolean(item));
    if (!item) return;
    const top = part("div", "", "top");
    const close = part("button", "close");
    close.type = "button";
    close.addEventListener("click", () => choose(null));
    top.append(part("b", `point ${item.point}: ${item.row.cells[1].textContent}`));
    const link = one("a", item.row);
    if (link) top.append(link.cloneNode(true));
    top.append(close);
    const facts = document.createElement("dl");
    headings.slice(2).forEach((heading, at) => {
      facts.append(part("dt", heading.textContent), part("dd", item.row.cells[at + 2].textContent));
    });
    inspector.append(top, facts, part("code", item.row.dataset.command));
  };
  const choose = (point, { scroll = false } = {}) => {
    chosen = point === chosen ? null : point;
    for (const mark of marks) mark.classList.toggle("on", mark.dataset.p === chosen);
    for (const item of rows) {
      item.row.classList.toggle("on", item.point === chosen);
      item.row.setAttribute("aria-selected", item.point === chosen);
    }
    inspect();
    const row = byPoint.get(chosen)?.row;
    const box = one(".scroll");
    if (row && scroll) box.scrollTop = row.offsetTop - box.clientHeight / 3;
  };
  const filter = (word) => {
    const passing = new Set();
    for (const item of rows) {
      const passes = item.text.includes(word);
      item.row.classList.toggle("hidden", !passes);
      if (passes) passing.add(item.point);
    }
    for (const mark of marks) mark.classList.toggle("off", word !== "" && !passing.has(mark.dataset.p));
    one("#counted").textContent = `${passing.size} of ${rows.length} points`;
  };

  document.addEventListener("click", (event) => {
    const mark = event.target.closest("[data-p]");
    if (mark && !event.target.closest("a")) choose(mark.dataset.p, { scroll: !mark.matches("tr") });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(null);
    const row = event.target.closest ? event.target.closest("tr[data-p]") : null;
    if (row && (event.key === "Enter" || event.key === " ") && !event.target.closest("a")) {
      choose(row.dataset.p);
      event.preventDefault();
    }
  });
  one("#search").addEventListener("input", (event) => filter(event.target.value.trim().toLowerCase()));
  headings.forEach((heading, column) => {
    one("button", heading).addEventListener("click", () => {
      const numeric = heading.classList.contains("number");
      const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const key = ({ row }) => {
        const cell = row.cells[column];
        const value = Number(cell.dataset.v ?? cell.textContent);
        return numeric ? (Number.isNaN(value) ? Infinity : value) : cell.textContent;
      };
      const compared = (a, b) => (numeric ? key(a) - key(b) : key(a).localeCompare(key(b), "en", { numeric: true }));
      rows.sort((a, b) => (order === "ascending" ? compared(a, b) : compared(b, a)));
      one("#points-table tbody").append(...rows.map(({ row }) => row));
    });
  });
  filter("");
})();
