/** The platform's error body (OpenAI's shape) as an exception with words for people. */

import { noticeAnswer } from "./signals";

export class ApiError extends Error {
  readonly status: number;
  readonly type: string;
  readonly param: string | null;
  readonly code: string | null;
  readonly requestId: string | null;

  constructor(status: number, body: unknown, requestId: string | null = null) {
    const error = errorObject(body);
    super(text(error.message) ?? `The server responded with status ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.type = text(error.type) ?? "server_error";
    this.param = text(error.param);
    this.code = text(error.code);
    this.requestId = requestId;
    // Here, where every answer passes, however it was asked for: a key may end under any page.
    noticeAnswer(status, this.code);
  }
}

function text(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}

function errorObject(body: unknown): Record<string, unknown> {
  if (typeof body !== "object" || body === null || !("error" in body)) return {};
  const { error } = body;
  return typeof error === "object" && error !== null ? (error as Record<string, unknown>) : {};
}

export async function errorFrom(response: Response): Promise<ApiError> {
  const requestId = response.headers.get("x-request-id");
  const raw = await response.text();
  let body: unknown = null;
  try {
    body = JSON.parse(raw);
  } catch {
    // A proxy's HTML page, say: the status alone has to do.
  }
  return new ApiError(response.status, body, requestId);
}

/** One sentence for the person in front of the screen. */
export function describe(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError)
    return "The server cannot be reached. Check your connection and that the server is running, then try again.";
  if (error instanceof Error) return error.message;
  return "Something went wrong.";
}
