import type { Plugin } from "vite";

export function preloads(manifest: string): Plugin;
