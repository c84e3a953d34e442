// The openai package for Node against a served Tenora: TENORA_URL (with /v1), TENORA_KEY,
// TENORA_MODEL. Run by tests/clients/test_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const HIDDEN = 576; // of SmolLM2-135M's states, which are its embeddings
const { TENORA_URL: baseURL, TENORA_KEY: apiKey, TENORA_MODEL: model } = process.env;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const Weather = z.object({ city: z.string().max(20), unit: z.enum(["celsius", "fahrenheit"]) });
const Person = z.object({
  name: z.string().max(20),
  age: z.int().min(0).max(120),
  mood: z.enum(["good", "bad"]),
});
const about = (content) => [{ role: "user", content }];
const asked = { model, temperature: 0, max_completion_tokens: 200 };
const question = "What is the weather in Paris?";
const weather = { name: "get_weather", parameters: Weather };
const hello = { ...asked, messages: about("Say hello."), max_completion_tokens: 24 };
const person = { messages: about("Describe a person in JSON.") };

test("models", async () => {
  const names = [];
  for await (const each of client.models.list()) names.push(each.id);
  assert.ok(names.includes(model) && names.includes("support"));
  assert.equal((await client.models.retrieve("support")).id, "support");
});

test("a chat, whole and streamed", async () => {
  const whole = await client.chat.completions.create(hello);
  const stream = client.chat.completions.stream({ ...hello, stream_options: { include_usage: true } });
  const streamed = await stream.finalChatCompletion();
  assert.ok(whole.choices[0].message.content);
  assert.equal(streamed.choices[0].message.content, whole.choices[0].message.content);
  assert.equal(streamed.usage.completion_tokens, whole.usage.completion_tokens);
});

for (const choice of ["required", { type: "function", function: { name: "get_weather" } }])
  test(`a forced call, whole and streamed: ${JSON.stringify(choice)}`, async () => {
    const body = {
      ...asked,
      messages: about(question),
      tools: [zodFunction(weather)],
      tool_choice: choice,
      parallel_tool_calls: false,
    };
    const whole = await client.chat.completions.parse(body);
    const streamed = await client.chat.completions.stream(body).finalChatCompletion();
    for (const { choices } of [whole, streamed]) {
      assert.equal(choices[0].finish_reason, "tool_calls");
      assert.equal(choices[0].message.tool_calls.length, 1);
      Weather.parse(choices[0].message.tool_calls[0].function.parsed_arguments);
    }
  });

test("runTools: the call, the tool's answer, the model's", async () => {
  const cities = [];
  const tool = zodFunction({
    ...weather,
    function: ({ city }) => {
      cities.push(city);
      return "18 degrees, sunny";
    },
  });
  // A choice that is made for the model is the runner's last; auto lets it speak.
  const forced = { type: "function", function: { name: "get_weather" } };
  const named = client.chat.completions.runTools({ ...asked, messages: about(question), tools: [tool], tool_choice: forced });
  await named.done();
  assert.equal(cities.length, 1);
  const messages = named.messages;
  assert.equal(messages.at(-1).role, "tool");
  const auto = client.chat.completions.runTools({ ...asked, messages, tools: [tool] }, { maxChatCompletions: 2 });
  await auto.done();
  assert.ok(auto.messages.length > messages.length);
});

test("structured output, whole and streamed", async () => {
  const body = { ...asked, ...person, response_format: zodResponseFormat(Person, "person") };
  const whole = await client.chat.completions.parse(body);
  const streamed = await client.chat.completions.stream(body).finalChatCompletion();
  for (const { choices } of [whole, streamed]) Person.parse(choices[0].message.parsed);
});

test("a format beside tools", async () => {
  const body = {
    ...asked,
    ...person,
    response_format: zodResponseFormat(Person, "person"),
    tools: [zodFunction(weather)],
  };
  const [{ message }] = (await client.chat.completions.parse(body)).choices;
  if (message.tool_calls?.length) Weather.parse(message.tool_calls[0].function.parsed_arguments);
  else Person.parse(message.parsed);
});

test("responses: text, whole and streamed", async () => {
  const body = { model, temperature: 0, input: "Say hello.", max_output_tokens: 24 };
  const whole = await client.responses.create(body);
  assert.ok(whole.output_text);
  let said = "";
  for await (const event of await client.responses.create({ ...body, stream: true }))
    if (event.type === "response.output_text.delta") said += event.delta;
  assert.equal(said, whole.output_text);
  const streamed = await client.responses.stream(body).finalResponse();
  assert.equal(streamed.output_text, whole.output_text);
});

test("responses: a forced call, and what the tool answered", async () => {
  const input = about(question);
  const body = { model, temperature: 0, max_output_tokens: 200, tools: [zodResponsesFunction(weather)] };
  const forced = { ...body, input, tool_choice: "required", parallel_tool_calls: false };
  const whole = await client.responses.parse(forced);
  const streamed = await client.responses.stream(forced).finalResponse();
  for (const { output } of [whole, streamed]) {
    assert.equal(output.length, 1);
    Weather.parse(output[0].parsed_arguments);
  }
  const [call] = (await client.responses.create(forced)).output;
  input.push(call, { type: "function_call_output", call_id: call.call_id, output: "18 degrees" });
  assert.ok((await client.responses.create({ ...body, input })).output.length);
});

test("responses: structured output, whole and streamed", async () => {
  const body = {
    model,
    temperature: 0,
    max_output_tokens: 200,
    input: person.messages,
    text: { format: zodTextFormat(Person, "person") },
  };
  Person.parse((await client.responses.parse(body)).output_parsed);
  Person.parse((await client.responses.stream(body).finalResponse()).output_parsed);
});

test("embeddings: base64, which the client asks for by itself, and numbers", async () => {
  const [own] = (await client.embeddings.create({ model, input: "a kettle" })).data;
  const float = { model, input: "a kettle", encoding_format: "float" };
  const [numbers] = (await client.embeddings.create(float)).data;
  assert.equal(own.embedding.length, HIDDEN);
  assert.equal(numbers.embedding.length, HIDDEN);
  // Both are one float32 vector, computed twice.
  own.embedding.forEach((value, at) => assert.ok(Math.abs(value - numbers.embedding[at]) < 1e-5));
});

test("a refusal is the client's error, with our words", async () => {
  await assert.rejects(client.chat.completions.create({ ...hello, temperature: 7 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    assert.match(error.message, /less than or equal to 2/);
    return true;
  });
  const unknown = client.chat.completions.create({ ...hello, model: "nobody" });
  await assert.rejects(unknown, OpenAI.NotFoundError);
});
