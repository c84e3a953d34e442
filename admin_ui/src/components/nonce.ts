/** The nonce of this page under the platform's content security policy, which is fresh for each
 * answer; without it the browser refuses the styles that Mantine writes into the page. */
export function styleNonce(): string {
  return document.querySelector<HTMLMetaElement>('meta[property="csp-nonce"]')?.nonce ?? "";
}
