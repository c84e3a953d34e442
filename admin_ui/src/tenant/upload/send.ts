/** The requests of an upload. XMLHttpRequest for parts, because fetch tells no upload progress. */

import { at } from "../../api/base";
import { createClient, headersOf, required, type Schemas } from "../../api/client";
import { ApiError, errorFrom } from "../../api/errors";
import type { Credentials } from "../../api/session";
import type { Parcel } from "./folder";

async function sendForm<T>(
  credentials: Credentials,
  path: string,
  form: FormData,
  signal?: AbortSignal,
): Promise<T> {
  const response = await fetch(at(path), {
    method: "POST",
    body: form,
    headers: headersOf(credentials),
    signal,
  });
  if (!response.ok) throw await errorFrom(response);
  return (await response.json()) as T;
}

/** Config and header alone: what would become of it. */
export function askPreflight(
  credentials: Credentials,
  name: string,
  { config, weights, draftLayer }: Parcel,
  signal: AbortSignal,
): Promise<Schemas["Preflight"]> {
  const form = new FormData();
  form.append("name", name);
  form.append("adapter_config", config, "adapter_config.json");
  form.append("header", weights.header, "header");
  form.append("weights_bytes", String(weights.whole.size));
  if (draftLayer !== null) {
    form.append("draft_layer_header", draftLayer.header, "header");
    form.append("draft_layer_bytes", String(draftLayer.whole.size));
  }
  return sendForm(credentials, "/v1/adapters/preflight", form, signal);
}

export async function beginUpload(
  credentials: Credentials,
  bytes: number,
): Promise<Schemas["Upload"]> {
  const { data } = await createClient(credentials).POST("/v1/uploads", { body: { bytes } });
  return required(data);
}

/** What the server has of it; null where it knows no such upload. */
export async function getUpload(
  credentials: Credentials,
  id: string,
): Promise<Schemas["Upload"] | null> {
  try {
    const { data } = await createClient(credentials).GET("/v1/uploads/{upload_id}", {
      params: { path: { upload_id: id } },
    });
    return required(data);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** `onSent` is told how much of this part has left. */
export function sendPart(
  credentials: Credentials,
  uploadId: string,
  data: Blob,
  sha256: string | null,
  onSent: (bytes: number) => void,
  signal: AbortSignal,
): Promise<Schemas["UploadPart"]> {
  const form = new FormData();
  form.append("data", data, "part");
  if (sha256 !== null) form.append("sha256", sha256);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", at(`/v1/uploads/${encodeURIComponent(uploadId)}/parts`));
    for (const [header, value] of Object.entries(headersOf(credentials)))
      request.setRequestHeader(header, value);
    request.responseType = "json";
    request.upload.onprogress = ({ loaded }) => onSent(Math.min(loaded, data.size));
    request.onload = () => {
      if (request.status >= 200 && request.status < 300) resolve(request.response);
      else reject(new ApiError(request.status, request.response));
    };
    request.onerror = () => reject(new TypeError("The connection was lost. Try again."));
    request.onabort = () => reject(new DOMException("Stopped.", "AbortError"));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    if (signal.aborted) request.abort();
    else request.send(form);
  });
}

export async function completeUpload(
  credentials: Credentials,
  uploadId: string,
  partIds: string[],
): Promise<void> {
  await createClient(credentials).POST("/v1/uploads/{upload_id}/complete", {
    params: { path: { upload_id: uploadId } },
    body: { part_ids: partIds },
  });
}

export async function cancelUpload(credentials: Credentials, uploadId: string): Promise<void> {
  await createClient(credentials).POST("/v1/uploads/{upload_id}/cancel", {
    params: { path: { upload_id: uploadId } },
  });
}

/** The next version of `name`, of an upload that is complete. */
export function makeVersion(
  credentials: Credentials,
  name: string,
  { config, template, draftLayer }: Parcel,
  uploadId: string,
): Promise<Schemas["AdapterVersion"]> {
  const form = new FormData();
  form.append("name", name);
  form.append("adapter_config", config, "adapter_config.json");
  form.append("upload_id", uploadId);
  if (template !== null) form.append("chat_template", new Blob([template]), "chat_template.jinja");
  if (draftLayer !== null) form.append("draft_layer", draftLayer.whole, "draft_layer.safetensors");
  return sendForm(credentials, "/v1/adapters", form);
}

export async function newestVersion(credentials: Credentials, name: string): Promise<number> {
  const { data } = await createClient(credentials).GET("/v1/adapters/{name}", {
    params: { path: { name } },
  });
  return required(data).version;
}

/** In hex; null where the browser has no crypto, as on a page without TLS. */
export async function sha256Of(data: Blob): Promise<string | null> {
  if (!window.isSecureContext) return null;
  const digest = await crypto.subtle.digest("SHA-256", await data.arrayBuffer());
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
