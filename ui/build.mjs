// Builds the page into the package: `node build.mjs`, or `node build.mjs --check`, which writes
// nothing and fails unless what is checked in is what would be built.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../src/perdure/web/static");
const files = new Map();

const options = {
  absWorkingDir: here,
  bundle: true,
  minify: true,
  write: false,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none", // the licences are in a file of their own
  jsx: "automatic",
  jsxImportSource: "preact",
  outdir: "out",
};

/** Adds a file under a name that changes with its content, and returns that name. */
function add(stem, extension, content) {
  const digest = createHash("sha256").update(content).digest("hex").slice(0, 10);
  const name = `${stem}-${digest}.${extension}`;
  files.set(`assets/${name}`, Buffer.from(content));
  return name;
}

async function bundle(entry, define = {}) {
  const { outputFiles } = await build({ ...options, entryPoints: [entry], define });
  return Object.fromEntries(outputFiles.map((file) => [file.path.split(".").pop(), file.text]));
}

const worker = await bundle("src/live_worker.ts");
const live = add("live", "js", worker.js);
const page = await bundle("src/main.tsx", { LIVE_WORKER: JSON.stringify(live) });
const names = {
  icon: add("icon", "svg", readFileSync(join(here, "icon.svg"))),
  script: add("page", "js", page.js),
  style: add("page", "css", page.css),
};
const html = readFileSync(join(here, "index.html"), "utf8");
files.set("index.html", Buffer.from(html.replace(/\{\{(\w+)\}\}/g, (_, name) => names[name])));
files.set("LICENSES.txt", Buffer.from(licences()));

/** The licences of what is bundled. */
function licences() {
  const { packages } = JSON.parse(readFileSync(join(here, "package-lock.json"), "utf8"));
  const bundled = Object.keys(packages).filter((path) => path && !packages[path].dev);
  return bundled
    .map((path) => {
      const text = readFileSync(join(here, path, "LICENSE"), "utf8").trim();
      return `${path.replace("node_modules/", "")} ${packages[path].version}\n\n${text}\n`;
    })
    .join(`\n${"-".repeat(80)}\n\n`);
}

function present(folder) {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(folder, join(entry.parentPath, entry.name)).replaceAll("\\", "/"));
}

function check() {
  const wrong = [
    ...present(target).filter((name) => !files.has(name)),
    ...[...files.keys()].filter((name) => {
      const path = join(target, name);
      return !existsSync(path) || !readFileSync(path).equals(files.get(name));
    }),
  ];
  if (wrong.length > 0) {
    console.error("The page that is checked in is not what its sources make. Run scripts/page:");
    for (const name of wrong) console.error(`  ${name}`);
    process.exit(1);
  }
}

function write() {
  rmSync(target, { recursive: true, force: true });
  mkdirSync(join(target, "assets"), { recursive: true });
  for (const [name, content] of files) writeFileSync(join(target, name), content);
}

if (process.argv.includes("--check")) check();
else write();
let total = 0;
for (const [name, content] of files) {
  const packed = gzipSync(content, { level: 9 }).length;
  if (name !== "LICENSES.txt") total += packed;
  console.log(`${name.padEnd(32)} ${String(content.length).padStart(8)} ${String(packed).padStart(7)} gz`);
}
console.log(`${"in all".padEnd(32)} ${" ".repeat(8)} ${String(total).padStart(7)} gz`);
