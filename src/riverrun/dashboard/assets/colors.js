// Colours that people with any kind of colour vision can tell apart (after Okabe and Ito), for light and for dark.

const SERIES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#b0558a", "#c98600", "#3a9bd8", "#5d4fa2", "#6b7480"],
  dark: ["#56b4e9", "#e69f00", "#2fc79a", "#e08fbd", "#f0e442", "#f07b3f", "#a99cff", "#aab4c0"],
};
// After the colours, dashes tell lines apart.
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];

const INK = {
  light: { text: "#1a2330", muted: "#5a6675", grid: "#e8ebef", axis: "#d5dae0", tile: "#ffffff", warn: "#b45f00", bad: "#b3261e", accent: "#0072b2" },
  dark: { text: "#e7ebf0", muted: "#9aa6b4", grid: "#242b34", axis: "#39424e", tile: "#161b22", warn: "#f0b429", bad: "#ff7a66", accent: "#56b4e9" },
};

// Cividis: evenly lighter, blue to yellow; it reads the same in grey.
const SCALE = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];

export function theme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export const ink = () => INK[theme()];

export function series(number) {
  const colours = SERIES[theme()];
  return { color: colours[number % colours.length], dash: DASHES[Math.floor(number / colours.length) % DASHES.length] };
}

export function alpha(hex, share) {
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${share})`;
}

const PARTS = SCALE.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

export function heat(share) {
  const place = Math.max(0, Math.min(1, share)) * (PARTS.length - 1);
  const low = Math.min(PARTS.length - 2, Math.floor(place));
  const mixed = PARTS[low].map((from, at) => Math.round(from + (PARTS[low + 1][at] - from) * (place - low)));
  return `rgb(${mixed.join(",")})`;
}

// How bad a value is: "", "warn" or "bad". Where bad is the lower one, lower is worse.
export function level(value, thresholds) {
  if (value === null || value === undefined || !Number.isFinite(Number(value))) return "";
  const { warn, bad } = thresholds;
  const down = warn !== undefined && bad !== undefined && bad < warn;
  const over = (limit) => limit !== undefined && (down ? Number(value) <= limit : Number(value) >= limit);
  return over(bad) ? "bad" : over(warn) ? "warn" : "";
}
