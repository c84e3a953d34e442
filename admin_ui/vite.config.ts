import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

/** Where `npm run dev` finds a running platform. */
const PLATFORM = "http://127.0.0.1:8000";

export default defineConfig({
  plugins: [react()],
  build: {
    // All of these know light-dark(), so it stays as written instead of being rewritten.
    target: ["chrome123", "firefox120", "safari17.5"],
    chunkSizeWarningLimit: 1200,
  },
  server: { proxy: { "/v1": PLATFORM, "/admin/v1": PLATFORM, "/readyz": PLATFORM } },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
