/** Jobs that a worker does: polled until they have ended. */

const POLL_MS = 500;

interface Job {
  id: string;
  state: "waiting" | "running" | "done" | "failed" | "cancelled";
  done: number;
  total: number | null;
  error: string | null;
}

/** The job as it is when it is done; `onProgress` is told its part of 1. Throws where it does
 *  not come to that. */
export async function untilDone<J extends Job>(
  asked: J,
  again: (job: J) => Promise<J>,
  onProgress: (part: number) => void,
): Promise<J> {
  let job = asked;
  while (job.state === "waiting" || job.state === "running") {
    onProgress(job.total ? Math.min(job.done / job.total, 1) : 0);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    job = await again(job);
  }
  if (job.state !== "done") throw new Error(job.error ?? "The server could not do this.");
  return job;
}
