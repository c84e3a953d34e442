import { describe, expect, it } from "vitest";
import { csv, fileName } from "./download";

describe("csv", () => {
  it("quotes what needs it and keeps amounts as they are", () => {
    expect(
      csv([
        ["adapter", "amount", "n"],
        ['a "b", c', "0.000000000001", 3],
        [null, "-1.50", 0],
      ]),
    ).toBe('adapter,amount,n\r\n"a ""b"", c",0.000000000001,3\r\n,-1.50,0\r\n');
  });

  it("leaves no formula to a spreadsheet", () => {
    expect(csv([["=cmd()", "+1", "@x", "-x"]])).toBe("'=cmd(),'+1,'@x,'-x\r\n");
  });
});

describe("fileName", () => {
  it("is the one the server gives", () => {
    const answer = new Response("", {
      headers: { "content-disposition": 'attachment; filename="INV-7.pdf"' },
    });
    expect(fileName(answer, "x.pdf")).toBe("INV-7.pdf");
    expect(fileName(new Response(""), "x.pdf")).toBe("x.pdf");
  });
});
