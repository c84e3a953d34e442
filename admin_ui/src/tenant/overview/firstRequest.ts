/** A first request, to be copied. Pure. */

export const LANGUAGES = ["curl", "python"] as const;
export type Language = (typeof LANGUAGES)[number];

const PROMPT = "Say hello.";
const MAX_TOKENS = 64; // a small model may go on for long

export function firstRequest(language: Language, base: string, model: string): string {
  return language === "curl" ? curl(base, model) : python(base, model);
}

function curl(base: string, model: string): string {
  const body = { model, messages: [{ role: "user", content: PROMPT }], max_tokens: MAX_TOKENS };
  return [
    `curl ${base}/chat/completions \\`,
    '  -H "Authorization: Bearer $TENORA_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    // A quote within single quotes of a shell.
    `  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`,
  ].join("\n");
}

function python(base: string, model: string): string {
  return `import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(base)}, api_key=os.environ["TENORA_API_KEY"])
answer = client.chat.completions.create(
    model=${JSON.stringify(model)},
    messages=[{"role": "user", "content": ${JSON.stringify(PROMPT)}}],
    max_tokens=${MAX_TOKENS},
)
print(answer.choices[0].message.content)`;
}
