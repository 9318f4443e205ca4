// Links the panels of a report: a selection or filter in one applies to all. Everything is visible without this script,
// except for the bars of channels and the labels of a schedule. All texts are data: set as text, never as markup.
(() => {
  const svg = (name, attributes = {}, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };
  const numbers = (mark) => (mark.dataset.n === undefined ? [] : mark.dataset.n.split(" ").map(Number));
  const microseconds = (value) => value.toLocaleString("en", { maximumFractionDigits: 2 });

  const data = JSON.parse(one("#data").textContent);

  // The selection and the filters.
  const state = { chosen: new Set(), word: "", devices: new Set(), brush: null, free: false };
  const rows = all("#nodes-table tbody tr").map((row) => ({
    row,
    number: Number(row.dataset.n),
    text: row.textContent.toLowerCase(),
    devices: row.dataset.devices.split(" "),
    free: row.classList.contains("free"),
    spans: [],
  }));
  const byNumber = new Map(rows.map((item) => [item.number, item]));
  const gantts = all(".gantt");
  for (const gantt of gantts) {
    for (const bar of all("svg.time rect.mark", gantt)) {
      const start = Number(bar.getAttribute("x"));
      for (const number of numbers(bar)) byNumber.get(number)?.spans.push([start, start + Number(bar.getAttribute("width"))]);
    }
  }

  const passes = (item) => {
    const { word, devices, brush } = state;
    if (word && !item.text.includes(word)) return false;
    if (devices.size && !item.devices.some((device) => devices.has(device))) return false;
    return !brush || item.spans.some(([start, end]) => start < brush[1] && end > brush[0]);
  };

  const follow = () => {
    const filtered = Boolean(state.word || state.devices.size || state.brush);
    const passing = new Set();
    let shown = 0;
    for (const item of rows) {
      const passed = passes(item);
      if (passed) passing.add(item.number);
      const visible = passed && (state.free || !item.free || state.chosen.has(item.number));
      item.row.classList.toggle("hidden", !visible);
      item.row.setAttribute("aria-selected", state.chosen.has(item.number));
      shown += visible;
    }
    for (const mark of all(".mark")) {
      const own = numbers(mark);
      mark.classList.toggle("on", own.some((number) => state.chosen.has(number)));
      mark.classList.toggle("off", filtered && !own.some((number) => passing.has(number)));
    }
    root.classList.toggle("choosing", state.chosen.size > 0);
    one("#counted").textContent = `${shown} of ${rows.length} nodes`;
    const within = state.brush ? `${microseconds(state.brush[0])} to ${microseconds(state.brush[1])} us, ${passing.size} nodes` : "";
    one("#brushed").textContent = within;
    one('[data-zoom="brush"]').disabled = !state.brush;
    drawBrush();
  };

  // The selected node, in the panel below.
  const inspector = one("#inspector");
  const button = (text, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", act);
    return made;
  };
  const inspect = () => {
    inspector.replaceChildren();
    const chosen = [...state.chosen];
    inspector.hidden = chosen.length === 0;
    root.classList.toggle("inspecting", chosen.length > 0);
    if (!chosen.length) return;
    const share = (number) => Number(one("td[data-v]", byNumber.get(number)?.row ?? document.body)?.dataset.v ?? 0);
    const number = chosen.reduce((best, other) => (Math.abs(share(other)) > Math.abs(share(best)) ? other : best));
    const top = document.createElement("div");
    top.className = "top";
    const name = document.createElement("b");
    const row = byNumber.get(number)?.row;
    name.textContent = row ? `${row.cells[1].textContent} (${row.cells[2].textContent})` : `node ${number}`;
    const others = document.createElement("span");
    others.textContent = chosen.length > 1 ? `decided with ${chosen.length - 1} more` : "";
    const last = rows.length - 1;
    top.append(name, others, button("previous", () => choose([Math.max(0, number - 1)])));
    top.append(button("next", () => choose([Math.min(last, number + 1)])), button("close", () => choose([])));
    const body = document.createElement("div");
    body.className = "body";
    const told = document.getElementById(`detail-${number}`);
    if (told) body.append(...all(".side", told).map((side) => side.cloneNode(true)));
    else body.textContent = row ? row.cells[row.cells.length - 1].textContent || "It costs nothing." : "";
    inspector.append(top, body);
    for (const bar of all(".of-node")) bar.setAttribute("width", 0);
    marked(number);
  };
  // The share of the run's time and energy that the selected node has, below the bars of parts.
  const marked = (number) => {
    for (const bar of all(".of-node")) {
      const share = data.shares?.[bar.dataset.key]?.[number] ?? 0;
      bar.setAttribute("width", Math.max(share ? 1 : 0, share * Number(bar.dataset.full)));
    }
  };
  const choose = (chosen, { scroll = true } = {}) => {
    state.chosen = new Set(chosen);
    inspect();
    follow();
    const row = byNumber.get(chosen[0])?.row;
    const box = one(".scroll");
    if (row && scroll && box) box.scrollTop = row.offsetTop - box.clientHeight / 3;
  };

  document.addEventListener("click", (event) => {
    const mark = event.target.closest(".mark");
    if (!mark || event.target.closest("#inspector")) return;
    const own = numbers(mark);
    const again = own.length === state.chosen.size && own.every((number) => state.chosen.has(number));
    choose(again ? [] : own, { scroll: !mark.matches("tr") });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") clear();
    const row = event.target.closest ? event.target.closest("tr.mark") : null;
    if (!row) return;
    if (event.key === "Enter" || event.key === " ") choose(numbers(row), { scroll: false });
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      let other = row;
      do other = event.key === "ArrowDown" ? other.nextElementSibling : other.previousElementSibling;
      while (other && other.classList.contains("hidden"));
      other?.focus();
    } else return;
    event.preventDefault();
  });

  // The table: search, filter, sort.
  const clear = () => {
    Object.assign(state, { word: "", brush: null });
    state.devices.clear();
    one("#search").value = "";
    for (const toggle of all("[data-device]")) toggle.setAttribute("aria-pressed", "false");
    choose([]);
  };
  one("#clear").addEventListener("click", clear);
  one("#search").addEventListener("input", (event) => {
    state.word = event.target.value.trim().toLowerCase();
    follow();
  });
  one("#show-free")?.addEventListener("change", (event) => {
    state.free = event.target.checked;
    follow();
  });
  for (const toggle of all("[data-device]")) {
    toggle.addEventListener("click", () => {
      const { device } = toggle.dataset;
      if (!state.devices.delete(device)) state.devices.add(device);
      toggle.setAttribute("aria-pressed", String(state.devices.has(device)));
      follow();
    });
  }
  all("#nodes-table thead th").forEach((heading, column) => {
    one("button", heading).addEventListener("click", () => {
      const numeric = heading.classList.contains("number");
      const now = heading.getAttribute("aria-sort");
      const order = now ? (now === "ascending" ? "descending" : "ascending") : numeric && column ? "descending" : "ascending";
      for (const other of all("#nodes-table thead th")) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const key = ({ row }) => {
        const cell = row.cells[column];
        return numeric ? Number(cell.dataset.v ?? cell.textContent) : cell.textContent;
      };
      const compared = (a, b) => (numeric ? key(a) - key(b) : key(a).localeCompare(key(b)));
      rows.sort((a, b) => (order === "ascending" ? compared(a, b) : compared(b, a)));
      one("#nodes-table tbody").append(...rows.map(({ row }) => row));
    });
  });

  // The schedules: zoom, brush, channels. All show the same interval.
  const end = Math.max(...gantts.map((gantt) => Number(gantt.dataset.end)));
  const view = { from: 0, to: end };
  const drawing = (gantt) => one("svg.chart", gantt);
  const size = (gantt) => drawing(gantt).viewBox.baseVal;
  const left = (gantt) => Number(gantt.dataset.left);
  const place = (gantt, time) => left(gantt) + ((time - view.from) / (view.to - view.from)) * (size(gantt).width - left(gantt));
  const timeAt = (gantt, event) => {
    const box = drawing(gantt).getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * size(gantt).width;
    return view.from + ((x - left(gantt)) / (size(gantt).width - left(gantt))) * (view.to - view.from);
  };
  const show = (from, to) => {
    const length = Math.min(end, Math.max(to - from, end / 1e5));
    view.from = Math.max(0, Math.min(from, end - length));
    view.to = view.from + length;
    gantts.forEach(draw);
    drawBrush();
  };
  const zoom = (factor, about = (view.from + view.to) / 2) =>
    show(about - (about - view.from) * factor, about + (view.to - about) * factor);
  const ticks = () => {
    const rough = (view.to - view.from) / 8;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough * 0.999);
    const first = Math.ceil(view.from / step - 1e-9);
    const count = Math.floor(view.to / step + 1e-9) - first + 1;
    return Array.from({ length: Math.max(0, count) }, (_, index) => Number(((first + index) * step).toPrecision(12)));
  };
  const draw = (gantt) => {
    const axis = one(".xaxis", gantt);
    const bottom = Number(axis.dataset.y);
    const drawn = ticks().flatMap((time) => {
      const x = place(gantt, time);
      return [
        svg("line", { x1: x, x2: x, y1: 8, y2: bottom, class: "grid" }),
        svg("text", { x, y: bottom + 14, class: "tick", "text-anchor": "middle" }, microseconds(time)),
      ];
    });
    one(".ticks", axis).replaceChildren(...drawn);
    for (const time of all("svg.time", gantt)) time.setAttribute("viewBox", `${view.from} 0 ${view.to - view.from} 1`);
    all(".track", gantt).forEach((track) => label(gantt, track));
  };
  // Names on bars that are wide enough.
  const label = (gantt, track) => {
    one(".labels", track)?.remove();
    const labels = svg("g", { class: `labels ${track.dataset.hue}` });
    const y = Number(one("svg.time", track).getAttribute("y")) + 19;
    for (const bar of all(":scope > svg.time rect.mark", track)) {
      const start = Math.max(view.from, Number(bar.getAttribute("x")));
      const stop = Math.min(view.to, Number(bar.getAttribute("x")) + Number(bar.getAttribute("width")));
      const room = place(gantt, stop) - place(gantt, start) - 8;
      const name = (bar.dataset.tip ?? "").replace(/: [^:]*$/, "");
      if (room < 30) continue;
      const most = Math.floor(room / 6.3);
      const text = name.length <= most ? name : `…${name.slice(1 - most)}`;
      labels.append(svg("text", { x: place(gantt, start) + 4, y }, text));
    }
    track.append(labels);
  };

  const drawBrush = () => {
    for (const gantt of gantts) {
      one(".brush", gantt)?.remove();
      if (!state.brush) continue;
      const [from, to] = state.brush.map((time) => Math.min(size(gantt).width, Math.max(left(gantt), place(gantt, time))));
      if (to > from) drawing(gantt).append(svg("rect", { class: "brush", x: from, y: 4, width: to - from, height: size(gantt).height - 40 }));
    }
  };
  for (const gantt of gantts) {
    gantt.tabIndex = 0;
    gantt.setAttribute("aria-label", "schedule: plus and minus zoom, arrows pan, 0 shows all");
    let start = null;
    gantt.addEventListener("pointerdown", (event) => {
      const time = timeAt(gantt, event);
      if (event.button === 0 && time >= view.from) start = { time, x: event.clientX };
    });
    addEventListener("pointermove", (event) => {
      if (!start || Math.abs(event.clientX - start.x) < 5) return;
      const now = Math.min(view.to, Math.max(view.from, timeAt(gantt, event)));
      state.brush = [Math.min(start.time, now), Math.max(start.time, now)];
      drawBrush();
    });
    addEventListener("pointerup", (event) => {
      const dragged = start && Math.abs(event.clientX - start.x) >= 5;
      start = null;
      if (!dragged) return;
      const swallow = (click) => click.stopPropagation(); // the click that ends the drag selects nothing
      addEventListener("click", swallow, { capture: true, once: true });
      setTimeout(() => removeEventListener("click", swallow, { capture: true }));
      follow();
    });
    gantt.addEventListener("dblclick", () => state.brush && show(...state.brush));
    gantt.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
        event.preventDefault();
        const moved = event.deltaY || event.deltaX;
        if (event.shiftKey) show(view.from + (moved / 800) * (view.to - view.from), view.to + (moved / 800) * (view.to - view.from));
        else zoom(moved > 0 ? 1.25 : 0.8, timeAt(gantt, event));
      },
      { passive: false },
    );
    gantt.addEventListener("keydown", (event) => {
      const step = (view.to - view.from) / 5;
      const act = {
        "+": () => zoom(0.6),
        "=": () => zoom(0.6),
        "-": () => zoom(1.6),
        0: () => show(0, end),
        ArrowLeft: () => show(view.from - step, view.to - step),
        ArrowRight: () => show(view.from + step, view.to + step),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      act();
    });
  }
  for (const control of all("[data-zoom]")) {
    control.addEventListener("click", () => {
      const act = { in: () => zoom(0.5), out: () => zoom(2), fit: () => show(0, end), brush: () => show(...state.brush) };
      act[control.dataset.zoom]();
    });
  }

  // Units with channels unfold into one lane per channel.
  const LANE = 9;
  const fold = (gantt, track, lanes, toggle) => {
    const open = track.classList.toggle("open");
    const count = 1 + Math.max(...lanes.map((lane) => lane[2]));
    toggle.textContent = open ? "fold" : `unfold ${count}`;
    toggle.setAttribute("aria-expanded", open);
    one(".lanes", track)?.remove();
    if (open) track.append(lanesOf(gantt, track, lanes, count));
    spread(gantt);
    follow();
  };
  const lanesOf = (gantt, track, lanes, count) => {
    const time = one("svg.time", track);
    const y = Number(time.getAttribute("y")) + Number(time.getAttribute("height")) + 4;
    const group = svg("g", { class: "lanes" });
    const drawn = svg("svg", { class: "time", x: time.getAttribute("x"), y, width: time.getAttribute("width"), height: count * LANE, viewBox: time.getAttribute("viewBox"), preserveAspectRatio: "none" });
    for (const [number, first, last, start, length] of lanes) {
      for (let channel = first; channel <= last; channel += 1) {
        const bar = svg("rect", { x: start, y: (channel + 0.1) / count, width: length, height: 0.8 / count, class: `mark ${track.dataset.hue}`, "data-n": number });
        bar.dataset.tip = `${track.dataset.word} ${channel}: ${microseconds(length)} us of ${byNumber.get(number)?.row.cells[1].textContent ?? ""}`;
        drawn.append(bar);
      }
    }
    group.append(drawn);
    for (let channel = 0; channel < count; channel += count > 8 ? 4 : 1) {
      group.append(svg("text", { x: left(gantt) - 6, y: y + channel * LANE + 8, class: "tick", "text-anchor": "end" }, String(channel)));
    }
    return group;
  };
  // Moves everything below unfolded channels down.
  const spread = (gantt) => {
    let more = 0;
    for (const track of all(".track", gantt)) {
      track.setAttribute("transform", `translate(0 ${more})`);
      const lanes = one(".lanes svg.time", track);
      if (lanes) more += Number(lanes.getAttribute("height")) + 8;
    }
    const axis = one(".xaxis", gantt);
    gantt.dataset.bottom ??= axis.dataset.y;
    gantt.dataset.height ??= size(gantt).height;
    axis.dataset.y = Number(gantt.dataset.bottom) + more;
    const title = one(".axis", axis);
    title.setAttribute("y", Number(axis.dataset.y) + 32);
    drawing(gantt).setAttribute("viewBox", `0 0 ${size(gantt).width} ${Number(gantt.dataset.height) + more}`);
    draw(gantt);
  };
  gantts.forEach((gantt) => {
    const { lanes, words } = data.runs[Number(gantt.dataset.run)];
    for (const track of all(".track", gantt)) {
      const own = lanes[track.dataset.place];
      if (!own) continue;
      track.dataset.word = words[track.dataset.place];
      const y = Number(track.dataset.y) + 28;
      const toggle = svg("text", { x: left(gantt) - 6, y, class: "fold", "text-anchor": "end", role: "button", tabindex: 0 });
      toggle.textContent = `unfold ${1 + Math.max(...own.map((lane) => lane[2]))}`;
      toggle.setAttribute("aria-expanded", "false");
      toggle.setAttribute("aria-label", `${track.dataset.word}s of ${one(".name", track).textContent}`);
      toggle.addEventListener("click", () => fold(gantt, track, own, toggle));
      toggle.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        fold(gantt, track, own, toggle);
      });
      track.append(toggle);
    }
    draw(gantt);
  });
  follow();
})();
