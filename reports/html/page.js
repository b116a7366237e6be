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

  document.querySelectorAll("figure[data-chart]").forEach((figure) => {
    const d = figures[figure.dataset.chart];
    if (!d) return;
    const svg = figure.querySelector("svg");
    const cursor = svg.querySelector(".cursor");
    const tip = figure.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));
    const buttons = [...figure.querySelectorAll(".legend button")];
    const shown = d.names.map(() => true);
    const paint = (i) => buttons[i] && buttons[i].querySelector("i").style.background;

    const restack = () => {
      const below = d.x.map(() => 0);
      d.y.forEach((values, i) => {
        const group = svg.querySelector(`[data-series="${i}"]`);
        if (!shown[i]) return;
        const above = below.map((b, k) => b + (values[k] || 0));
        const spot = (k, v) => `${pixels(d.xs, d.x[k]).toFixed(1)} ${pixels(d.ys, v).toFixed(1)}`;
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
          if (!shown[p.s]) return;
          const far = Math.hypot(pixels(d.xs, p.x) - at, pixels(d.ys, p.y) - up);
          if (!best || far < best.far) best = { far, p };
        });
        if (!best) return null;
        head.textContent = best.p.label;
        best.p.rows.forEach(([name, value]) => row(tip, name, value));
        return pixels(d.xs, best.p.x);
      }
      const k = nearest(at);
      head.textContent = `${format(d.x[k])} ${d.xUnit}`;
      d.names.forEach((name, i) => { if (shown[i]) row(tip, name, `${format(d.y[i][k])} ${d.unit.split(" ")[0]}`, paint(i)); });
      return pixels(d.xs, d.x[k]);
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const view = svg.viewBox.baseVal;
      const scale = Math.min(box.width / view.width, box.height / view.height);
      const left = box.left + (box.width - view.width * scale) / 2;
      const at = (event.clientX - left) / scale;
      if (at < d.xs[2] - 8 || at > d.xs[3] + 8) return hide();
      const x = fill(at, (event.clientY - box.top) / scale);
      if (x === null) return hide();
      cursor.setAttribute("x1", x); cursor.setAttribute("x2", x);
      cursor.setAttribute("y1", Math.min(d.ys[2], d.ys[3])); cursor.setAttribute("y2", Math.max(d.ys[2], d.ys[3]));
      cursor.style.opacity = 0.45;
      tip.classList.add("on");
      const own = figure.getBoundingClientRect();
      const spot = left - own.left + x * scale;
      const room = own.width - spot > tip.offsetWidth + 22;
      tip.style.left = `${Math.max(room ? spot + 12 : spot - tip.offsetWidth - 12, 4)}px`;
      tip.style.top = `${Math.max(box.top - own.top + 8, 4)}px`;
    });
    svg.addEventListener("pointerleave", hide);
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
