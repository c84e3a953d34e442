/**
 * All uploads of one place in this tab: sends their parts, some at a time, and goes on where it was
 * after a pause, a lost connection or a reload. It outlives every page; what it looks like is the
 * tray's business.
 */

import type { Schemas } from "../../api/client";
import { ApiError } from "../../api/errors";
import type { Credentials } from "../../api/session";
import type { Parcel } from "./folder";
import {
  type Identity,
  isMine,
  isSame,
  markOf,
  type Part,
  partBytesFor,
  partsOf,
  type Remembered,
  readRemembered,
  receivedBytes,
} from "./plan";
import * as server from "./send";

/** interrupted: its files have to be chosen again, for no page may keep them over a reload. */
export type Phase = "sending" | "paused" | "interrupted" | "finishing" | "sent" | "failed";

export interface Job {
  id: string;
  name: string;
  folder: string;
  bytes: number;
  sentBytes: number;
  /** Bytes a second, lately. */
  speed: number | null;
  phase: Phase;
  error: unknown;
  version: number | null;
}

interface Work {
  kept: Remembered;
  parcel: Parcel | null;
  phase: Phase;
  error: unknown;
  inFlight: Map<number, number>;
  stop: AbortController;
  /** Of the last seconds: when, and how much had been sent by then. */
  pace: [number, number][];
}

const STORED = "tenora.uploads";
const TAB = "tenora.tab";
const AT_ONCE = 3;
const RETRY_MS = [500, 2_000, 5_000, 15_000] as const;
const SEEN_EVERY_MS = 5_000;
const PACE_MS = 5_000;

function tabId(): string {
  const known = sessionStorage.getItem(TAB) ?? newId();
  sessionStorage.setItem(TAB, known);
  return known;
}

function newId(): string {
  return Array.from({ length: 4 }, () => Math.random().toString(36).slice(2, 8)).join("");
}

/** What tells this parcel from another. */
export async function identityOf({ config, weights, draftLayer }: Parcel): Promise<Identity> {
  const parts = [config, weights.header, ...(draftLayer ? [draftLayer.header] : [])];
  const told = await new Blob(parts).arrayBuffer();
  return {
    bytes: weights.whole.size,
    headerBytes: weights.header.size,
    mark: markOf(new Uint8Array(told)),
  };
}

export class UploadDesk {
  private readonly works = new Map<string, Work>();
  private readonly listeners = new Set<() => void>();
  private readonly tab = tabId();
  private jobs: readonly Job[] = [];
  private timer: ReturnType<typeof setInterval> | null = null;

  constructor(
    private readonly place: string,
    private readonly credentials: Credentials,
  ) {}

  snapshot = (): readonly Job[] => this.jobs;

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Finds what a reload has interrupted. */
  open(): void {
    for (const kept of readRemembered(localStorage.getItem(STORED))) {
      if (!isMine(kept, this.place, this.tab, Date.now()) || this.works.has(kept.id)) continue;
      const phase = kept.version === null ? "interrupted" : "sent";
      this.works.set(kept.id, this.work({ ...kept, tab: this.tab }, null, phase));
    }
    this.timer = setInterval(() => this.save(), SEEN_EVERY_MS);
    this.changed();
  }

  close(): void {
    if (this.timer !== null) clearInterval(this.timer);
    for (const work of this.works.values()) work.stop.abort();
    this.works.clear();
    this.changed();
  }

  async start(name: string, folder: string, parcel: Parcel): Promise<void> {
    const kept: Remembered = {
      id: newId(),
      place: this.place,
      tab: this.tab,
      seenAt: Date.now(),
      name,
      folder,
      identity: await identityOf(parcel),
      partBytes: 0,
      uploadId: null,
      parts: {},
      version: null,
    };
    const work = this.work(kept, parcel, "sending");
    this.works.set(kept.id, work);
    void this.run(work);
  }

  pause(id: string): void {
    const work = this.works.get(id);
    if (work?.phase !== "sending") return;
    work.stop.abort();
    this.become(work, "paused");
  }

  /** Goes on; `parcel` is what was chosen again. Throws an Error where it is another one. */
  async resume(id: string, parcel?: Parcel): Promise<void> {
    const work = this.works.get(id);
    if (work === undefined) return;
    if (parcel !== undefined) {
      if (!isSame(await identityOf(parcel), work.kept.identity))
        throw new Error(
          "This is a different adapter: its size, config or header differs from the upload. Choose the same folder, or cancel the upload.",
        );
      work.parcel = parcel;
    }
    if (work.parcel === null) return;
    work.stop = new AbortController();
    work.error = null;
    void this.run(work);
  }

  async cancel(id: string): Promise<void> {
    const work = this.works.get(id);
    if (work === undefined) return;
    work.stop.abort();
    const { uploadId } = work.kept;
    this.dismiss(id);
    // What is not cancelled ends by itself after a day.
    if (uploadId !== null) await server.cancelUpload(this.credentials, uploadId).catch(() => null);
  }

  dismiss(id: string): void {
    this.works.delete(id);
    this.save();
    this.changed();
  }

  private work(kept: Remembered, parcel: Parcel | null, phase: Phase): Work {
    const stop = new AbortController();
    return { kept, parcel, phase, error: null, inFlight: new Map(), stop, pace: [] };
  }

  private async run(work: Work): Promise<void> {
    this.become(work, "sending");
    const { signal } = work.stop;
    try {
      work.kept.version = await this.sent(work, signal);
      this.become(work, "sent");
    } catch (error) {
      if (signal.aborted) return;
      work.stop.abort();
      work.error = error;
      this.become(work, "failed");
    } finally {
      work.inFlight.clear();
    }
  }

  private async sent(work: Work, signal: AbortSignal): Promise<number> {
    const { kept, parcel } = work;
    if (parcel === null) throw new Error("Choose the files again to resume the upload.");
    const upload = await this.opened(kept);
    // Only the answer to the last request was lost: the newest version is what it became.
    if (upload.status === "used") return server.newestVersion(this.credentials, kept.name);
    if (upload.status === "pending") {
      const there = new Map(upload.parts.map(({ id, sha256 }) => [sha256, id]));
      await this.sendParts(work, parcel, there, signal);
      this.become(work, "finishing");
      const parts = partsOf(kept.identity.bytes, kept.partBytes);
      const ids = parts.map(({ index }) => kept.parts[index] ?? "");
      await server.completeUpload(this.credentials, upload.id, ids);
    }
    this.become(work, "finishing");
    return (await server.makeVersion(this.credentials, kept.name, parcel, upload.id)).version;
  }

  /** The upload as far as it is, or a new one: the server gives one up after a day. */
  private async opened(kept: Remembered): Promise<Schemas["Upload"]> {
    if (kept.uploadId !== null) {
      const upload = await server.getUpload(this.credentials, kept.uploadId);
      if (upload !== null && upload.status !== "expired" && upload.status !== "cancelled")
        return upload;
    }
    const upload = await server.beginUpload(this.credentials, kept.identity.bytes);
    kept.uploadId = upload.id;
    kept.parts = {};
    kept.partBytes = partBytesFor(kept.identity.bytes, upload.part_bytes_max);
    this.save();
    return upload;
  }

  /** Those that the server lacks: `there` are the ids of what it has, by their digests. */
  private async sendParts(
    work: Work,
    parcel: Parcel,
    there: ReadonlyMap<string, string>,
    signal: AbortSignal,
  ): Promise<void> {
    const { kept } = work;
    const known = new Set(there.values());
    for (const [index, id] of Object.entries(kept.parts))
      if (!known.has(id)) delete kept.parts[Number(index)];
    const waiting = partsOf(kept.identity.bytes, kept.partBytes);
    const sender = async () => {
      for (let part = waiting.shift(); part !== undefined; part = waiting.shift()) {
        if (signal.aborted) throw new DOMException("Stopped.", "AbortError");
        await this.sendOne(work, part, parcel.weights.whole, there, signal);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, sender));
  }

  private async sendOne(
    work: Work,
    part: Part,
    whole: Blob,
    there: ReadonlyMap<string, string>,
    signal: AbortSignal,
  ): Promise<void> {
    const { kept } = work;
    const data = whole.slice(part.begin, part.end);
    // Without digests what was sent is taken for what is there: names and sizes have been compared.
    const sha256 = await server.sha256Of(data);
    const id = sha256 === null ? kept.parts[part.index] : there.get(sha256);
    if (id !== undefined) {
      kept.parts[part.index] = id;
      this.changed();
      return;
    }
    delete kept.parts[part.index];
    const sent = await this.patiently(signal, () =>
      server.sendPart(
        this.credentials,
        kept.uploadId ?? "",
        data,
        sha256,
        (bytes) => this.progressed(work, part.index, bytes),
        signal,
      ),
    );
    kept.parts[part.index] = sent.id;
    work.inFlight.delete(part.index);
    this.save();
    this.changed();
  }

  /** A connection that breaks off is tried again, what the server refuses is not. */
  private async patiently<T>(signal: AbortSignal, send: () => Promise<T>): Promise<T> {
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await send();
      } catch (error) {
        const wait = RETRY_MS[attempt];
        const isRefused = error instanceof ApiError && error.status < 500;
        if (signal.aborted || isRefused || wait === undefined) throw error;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  }

  private progressed(work: Work, index: number, bytes: number): void {
    work.inFlight.set(index, bytes);
    this.changed();
  }

  private become(work: Work, phase: Phase): void {
    work.phase = phase;
    this.save();
    this.changed();
  }

  private save(): void {
    const others = readRemembered(localStorage.getItem(STORED)).filter(
      ({ id, place, tab }) => !(this.works.has(id) || (place === this.place && tab === this.tab)),
    );
    const mine = [...this.works.values()].map(({ kept }) => ({ ...kept, seenAt: Date.now() }));
    localStorage.setItem(STORED, JSON.stringify([...others, ...mine]));
  }

  private changed(): void {
    this.jobs = [...this.works.values()].map(jobOf);
    for (const listener of this.listeners) listener();
  }
}

function jobOf(work: Work): Job {
  const { kept, inFlight, phase, error, pace } = work;
  const stored = kept.partBytes === 0 ? 0 : receivedBytes(kept);
  const sentBytes = stored + [...inFlight.values()].reduce((sum, bytes) => sum + bytes, 0);
  return {
    id: kept.id,
    name: kept.name,
    folder: kept.folder,
    bytes: kept.identity.bytes,
    sentBytes: kept.version === null ? sentBytes : kept.identity.bytes,
    speed: phase === "sending" ? speedOf(pace, sentBytes) : null,
    phase,
    error,
    version: kept.version,
  };
}

function speedOf(pace: [number, number][], sentBytes: number): number | null {
  const now = Date.now();
  pace.push([now, sentBytes]);
  while (pace.length > 2 && now - (pace[0]?.[0] ?? 0) > PACE_MS) pace.shift();
  const [first] = pace;
  const passed = first === undefined ? 0 : now - first[0];
  return first === undefined || passed < 500 ? null : ((sentBytes - first[1]) * 1000) / passed;
}
