(() => {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const format = (v) => {
    if (v === null || v === undefined) return "–";
    const a = Math.abs(v);
    if (a !== 0 && a < 0.001) return v.toExponential(2);
    return v.toLocaleString("en-US", { maximumFractionDigits: a >= 1000 ? 0 : a >= 100 ? 1 : a >= 1 ? 2 : 4 });
  };
  const pixels = ([low, high, start, end, log], v) => {
    const share = log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low);
    return start + (end - start) * Math.min(Math.max(share, 0), 1);
  };
  const row = (tip, name, value, paint) => {
    const line = tip.appendChild(document.createElement("div"));
    const left = line.appendChild(document.createElement("span"));
    if (paint) left.appendChild(document.createElement("i")).style.background = paint;
    left.append(name);
    line.appendChild(document.createElement("b")).textContent = value;
  };

  const made = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    return element;
  };
  const ticks = (low, high, log) => {
    if (log && high / low >= 4) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
        [1, 2, 5].forEach((m) => { const v = m * 10 ** power; if (v >= low && v <= high) found.push(v); });
      }
      return found.length > 9 ? found.filter((v, k) => k % Math.ceil(found.length / 8) === 0) : found;
    }
    const raw = (high - low) / 6;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((v) => v >= raw * 0.999999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) found.push(k * step);
    return found;
  };
  const label = (v) => {
    const a = Math.abs(v);
    const [limit, unit] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([l]) => a >= l) || [1, ""];
    return `${Number((v / limit).toPrecision(5))}${unit}`;
  };

  // Zooming into x: what is drawn is stretched, ticks are made anew, d.xs tells the rest of the script where things are.
  const zoomable = (figure, svg, d, whole, changed) => {
    const [x0, x1] = [whole[2], whole[3]];
    const value = (p) => {
      const share = (p - x0) / (x1 - x0);
      return whole[4] ? whole[0] * (whole[1] / whole[0]) ** share : whole[0] + (whole[1] - whole[0]) * share;
    };
    const bottom = Math.max(d.ys[2], d.ys[3]);
    const clip = `clip-${figure.dataset.chart}`;
    const box = made("clipPath", { id: clip });
    box.appendChild(made("rect", { x: x0 - 1, y: 0, width: x1 - x0 + 2, height: bottom + 1 }));
    const select = made("rect", { class: "select", y: Math.min(d.ys[2], d.ys[3]), height: Math.abs(d.ys[2] - d.ys[3]), width: 0, x: 0 });
    svg.append(box, select);
    const stretched = [...svg.querySelectorAll("[data-series] path:not(.point), [data-series] rect, .bars rect, .front, .pct, line.limit")];
    const moved = [...svg.querySelectorAll("circle, svg.mark")].map((e) => {
      const name = e.tagName === "circle" ? "cx" : "x";
      return [e, name, Number(e.getAttribute(name))];
    });
    svg.querySelectorAll("text.mark").forEach((e) => {
      const at = Number(e.getAttribute("x"));
      if (at > x0 + 10 && at < x1 - 10) moved.push([e, "x", at]);
    });
    const clipped = [...svg.querySelectorAll("[data-series], .bars, .front")];
    const axis = svg.querySelector(".xticks");
    const original = axis ? [...axis.childNodes] : [];
    const named = axis && axis.classList.contains("named");
    if (named) original.forEach((e) => moved.push(e.tagName === "text" ? [e, "x", Number(e.getAttribute("x"))] : [e, "x1", Number(e.getAttribute("x1"))]));
    const reset = Object.assign(document.createElement("button"), { type: "button", className: "reset hidden", textContent: "Reset zoom" });
    figure.querySelector("figcaption").appendChild(reset);
    let view = [x0, x1];
    const apply = () => {
      const far = view[0] > x0 + 1e-6 || view[1] < x1 - 1e-6;
      const s = (x1 - x0) / (view[1] - view[0]);
      const t = x0 - view[0] * s;
      d.xs = far ? [value(view[0]), value(view[1]), x0, x1, whole[4]] : whole.slice();
      stretched.forEach((e) => { if (far) e.setAttribute("transform", `matrix(${s} 0 0 1 ${t} 0)`); else e.removeAttribute("transform"); });
      moved.forEach(([e, name, at]) => {
        const to = far ? at * s + t : at;
        e.setAttribute(name, to);
        if (name === "x1") e.setAttribute("x2", to);
        e.classList.toggle("hidden", to < x0 - 1 || to > x1 + 1);
      });
      clipped.forEach((e) => { if (far) e.setAttribute("clip-path", "url" + `(#${clip})`); else e.removeAttribute("clip-path"); });
      if (axis && !named) {
        axis.replaceChildren(...(far ? ticks(d.xs[0], d.xs[1], whole[4]).flatMap((v) => {
          const at = pixels(d.xs, v);
          const text = made("text", { x: at, y: bottom + 16, class: "tick", "text-anchor": "middle" });
          text.textContent = label(v);
          return [made("line", { x1: at, x2: at, y1: bottom, y2: bottom + 4, class: "axis" }), text];
        }) : original));
      }
      reset.classList.toggle("hidden", !far);
      changed();
    };
    const to = (a, b) => {
      const [low, high] = [Math.max(Math.min(a, b), x0), Math.min(Math.max(a, b), x1)];
      if (high - low < (x1 - x0) / 2000) return;  // no deeper than figures tell
      view = [low, high];
      apply();
    };
    const back = (p) => view[0] + ((p - x0) / (x1 - x0)) * (view[1] - view[0]);
    const zoom = {
      select: (a, b) => {
        const [low, high] = [Math.max(Math.min(a, b), x0), Math.min(Math.max(a, b), x1)];
        select.setAttribute("x", low);
        select.setAttribute("width", a === b ? 0 : Math.max(high - low, 0));
      },
      between: (a, b) => { if (Math.abs(a - b) > 6) to(back(a), back(b)); },
      around: (p, factor) => {
        const at = back(p);
        to(Math.max(at - (at - view[0]) * factor, x0), Math.min(at + (view[1] - at) * factor, x1));
      },
      reset: () => { view = [x0, x1]; apply(); },
    };
    reset.addEventListener("click", () => { zoom.reset(); svg.focus(); });
    return zoom;
  };

  document.querySelectorAll("figure[data-chart]").forEach((figure) => {
    const d = figures[figure.dataset.chart];
    if (!d) return;
    const svg = figure.querySelector(":scope > svg");
    const cursor = svg.querySelector(".cursor");
    const tip = figure.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));
    tip.setAttribute("role", "status");
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("aria-keyshortcuts", "ArrowLeft ArrowRight + - 0");
    const buttons = [...figure.querySelectorAll(".legend button")];
    const shown = d.names.map(() => true);
    const paint = (i) => buttons[i] && buttons[i].dataset.paint;

    const whole = d.xs.slice();
    const restack = () => {
      const below = d.x.map(() => 0);
      d.y.forEach((values, i) => {
        const group = svg.querySelector(`[data-series="${i}"]`);
        if (!shown[i]) return;
        const above = below.map((b, k) => b + (values[k] || 0));
        const spot = (k, v) => `${pixels(whole, d.x[k]).toFixed(1)} ${pixels(d.ys, v).toFixed(1)}`;
        const there = above.map((v, k) => spot(k, v));
        const back = below.map((v, k) => spot(k, v)).reverse();
        group.querySelector("path").setAttribute("d", "M" + there.concat(back).join("L") + "Z");
        above.forEach((v, k) => { below[k] = v; });
      });
    };
    buttons.forEach((button, i) => button.addEventListener("click", () => {
      shown[i] = !shown[i];
      button.setAttribute("aria-pressed", String(shown[i]));
      svg.querySelectorAll(`[data-series="${i}"]`).forEach((g) => g.classList.toggle("hidden", !shown[i]));
      if (d.kind === "stack") restack();
    }));

    const inside = (v) => v >= Math.min(d.xs[0], d.xs[1]) && v <= Math.max(d.xs[0], d.xs[1]);
    const hide = () => { tip.classList.remove("on"); cursor.style.opacity = 0; };
    const nearest = (at) => {
      let best = 0;
      d.x.forEach((v, k) => { if (Math.abs(pixels(d.xs, v) - at) < Math.abs(pixels(d.xs, d.x[best]) - at)) best = k; });
      return best;
    };
    const fill = (at, up) => {
      tip.replaceChildren();
      const head = tip.appendChild(document.createElement("b"));
      if (d.kind === "hist") {
        let k = 0;
        while (k < d.y[0].length - 1 && pixels(d.xs, d.x[k + 1]) < at) k += 1;
        head.textContent = `${format(d.x[k])} – ${format(d.x[k + 1])} ${d.xUnit}`;
        row(tip, d.names[0], `${format(d.y[0][k])} %`);
        return (pixels(d.xs, d.x[k]) + pixels(d.xs, d.x[k + 1])) / 2;
      }
      if (d.kind === "points") {
        let best = null;
        d.points.forEach((p) => {
          if (!shown[p.s] || !inside(p.x)) return;
          const far = Math.hypot(pixels(d.xs, p.x) - at, up === null ? 0 : pixels(d.ys, p.y) - up);
          if (!best || far < best.far) best = { far, p };
        });
        if (!best) return null;
        head.textContent = best.p.label;
        best.p.rows.forEach(([name, value]) => row(tip, name, value));
        return pixels(d.xs, best.p.x);
      }
      if (d.kind === "gantt") {
        const size = d.rows.length;
        const k = Math.min(Math.max(Math.floor((up === null ? 0.5 : (up - d.ys[3]) / (d.ys[2] - d.ys[3])) * size), 0), size - 1);
        head.textContent = d.rows[k];
        d.bars.filter((b) => b[0] === k && shown[b[3]]).forEach((b) => row(tip, d.names[b[3]], `${format(b[1])} – ${format(b[2])} ${d.xUnit}`, paint(b[3])));
        return at;
      }
      const k = nearest(at);
      head.textContent = `${format(d.x[k])} ${d.xUnit}`;
      d.names.forEach((name, i) => { if (shown[i]) row(tip, name, `${format(d.y[i][k])} ${d.unit.split(" ")[0]}`, paint(i)); });
      return pixels(d.xs, d.x[k]);
    };
    const geometry = () => {
      const box = svg.getBoundingClientRect();
      const view = svg.viewBox.baseVal;
      const scale = Math.min(box.width / view.width, box.height / view.height);
      return { box, scale, left: box.left + (box.width - view.width * scale) / 2 };
    };
    let place = null;
    const show = (at, up) => {
      const { box, scale, left } = geometry();
      const x = fill(at, up);
      if (x === null) return hide();
      place = x;
      cursor.setAttribute("x1", x); cursor.setAttribute("x2", x);
      cursor.setAttribute("y1", Math.min(d.ys[2], d.ys[3])); cursor.setAttribute("y2", Math.max(d.ys[2], d.ys[3]));
      cursor.style.opacity = 0.45;
      tip.classList.add("on");
      const own = figure.getBoundingClientRect();
      const spot = left - own.left + x * scale;
      const room = own.width - spot > tip.offsetWidth + 22;
      tip.style.left = `${Math.max(room ? spot + 12 : spot - tip.offsetWidth - 12, 4)}px`;
      tip.style.top = `${Math.max(box.top - own.top + 8, 4)}px`;
    };

    const zoom = zoomable(figure, svg, d, whole, () => { hide(); place = null; });
    let held = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const { left, scale } = geometry();
      held = { from: (event.clientX - left) / scale, moved: false };
      try { svg.setPointerCapture(event.pointerId); } catch (error) { /* a pointer that is gone already */ }
    });
    svg.addEventListener("pointermove", (event) => {
      const { box, scale, left } = geometry();
      const at = (event.clientX - left) / scale;
      if (held && (held.moved || Math.abs(at - held.from) > 6)) {
        held.moved = true;
        hide();
        zoom.select(held.from, at);
        return;
      }
      if (at < d.xs[2] - 8 || at > d.xs[3] + 8) return hide();
      show(at, (event.clientY - box.top) / scale);
    });
    svg.addEventListener("pointerup", (event) => {
      if (!held) return;
      const { left, scale } = geometry();
      const from = held;
      held = null;
      zoom.select(0, 0);
      if (from.moved) zoom.between(from.from, (event.clientX - left) / scale);
    });
    svg.addEventListener("pointercancel", () => { held = null; zoom.select(0, 0); });
    svg.addEventListener("pointerleave", () => { if (!held) hide(); });
    svg.addEventListener("mousedown", (event) => event.preventDefault());  // no text is selected, nothing is outlined
    svg.addEventListener("dblclick", () => zoom.reset());
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const [start, end] = [d.xs[2], d.xs[3]];
      const at = place === null ? (start + end) / 2 : place;
      const steps = { ArrowLeft: -1, ArrowRight: 1 };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in steps) {
        let next = at + steps[event.key] * (event.shiftKey ? 0.1 : 0.01) * (end - start);
        if (d.kind === "lines" || d.kind === "stack") {
          const k = Math.min(Math.max(nearest(at) + steps[event.key] * (event.shiftKey ? 10 : 1), 0), d.x.length - 1);
          if (inside(d.x[k])) next = pixels(d.xs, d.x[k]);
        }
        show(Math.min(Math.max(next, start), end), null);
      } else if (event.key === "Home" || event.key === "End") show(event.key === "Home" ? start : end, null);
      else if (event.key === "+" || event.key === "=") zoom.around(at, 0.5);
      else if (event.key === "-") zoom.around(at, 2);
      else if (event.key === "0" || event.key === "Escape") zoom.reset();
      else return;
      event.preventDefault();
    });
  });

  const filter = document.querySelector(".filter");
  if (filter) filter.addEventListener("input", () => {
    const wanted = filter.value.trim().toLowerCase();
    document.querySelectorAll("#settings tbody tr").forEach((tr) => tr.classList.toggle("hidden", !tr.textContent.toLowerCase().includes(wanted)));
  });

  const theme = document.querySelector(".theme");
  const names = ["auto", "light", "dark"];
  let now = 0;
  theme.addEventListener("click", () => {
    now = (now + 1) % 3;
    if (now) root.dataset.theme = names[now]; else delete root.dataset.theme;
    theme.textContent = `Theme: ${names[now]}`;
  });
})();
