/** Multipart upload of an adapter. XMLHttpRequest, because fetch tells no upload progress. */

import { headersOf, type Schemas } from "./client";
import { ApiError } from "./errors";
import type { Credentials } from "./session";

export interface AdapterFiles {
  config: File;
  weights: File;
}

/** Resolves with what the server made of it (state `quarantined`); `onProgress` gets 0..1. */
export function uploadAdapter(
  credentials: Credentials,
  name: string,
  files: AdapterFiles,
  onProgress: (fraction: number) => void,
  signal: AbortSignal,
): Promise<Schemas["AdapterVersion"]> {
  const form = new FormData();
  form.append("name", name);
  form.append("adapter_config", files.config, "adapter_config.json");
  form.append("weights", files.weights, "adapter_model.safetensors");
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/adapters");
    for (const [header, value] of Object.entries(headersOf(credentials)))
      request.setRequestHeader(header, value);
    request.responseType = "json";
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) onProgress(event.loaded / event.total);
    };
    request.onload = () => {
      if (request.status >= 200 && request.status < 300) resolve(request.response);
      else reject(new ApiError(request.status, request.response));
    };
    request.onerror = () =>
      reject(new Error("The upload broke off. Check the connection and try again."));
    request.onabort = () => reject(new DOMException("The upload was cancelled.", "AbortError"));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(form);
  });
}
