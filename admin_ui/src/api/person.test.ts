import { expect, it } from "vitest";
import { nameOf } from "./person";

const NOBODY = { id: "person_1", email: null, email_verified: false, name: null };

it.each(["boss@example.com", "boss\uff20example.com", "boss\ufe6bexample.com"])(
  "marks the name %s, which nobody has verified",
  (name) => expect(nameOf({ ...NOBODY, name })).toBe(`${name} (unverified)`),
);

it("says a verified email, else a name, else the id", () => {
  expect(nameOf({ ...NOBODY, email: "kim@example.com", email_verified: true })).toBe(
    "kim@example.com",
  );
  expect(nameOf({ ...NOBODY, name: "Kim" })).toBe("Kim");
  expect(nameOf(NOBODY)).toBe("person_1");
});
