import type { Plugin } from "vite";

export function mantineStyles(): Plugin;
