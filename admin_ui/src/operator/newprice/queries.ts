/** What the page of a new price list asks: what it would have changed. */

import { useMutation } from "@tanstack/react-query";
import { required, type Schemas } from "../../api/client";
import { useApi } from "../../api/context";
import type { Preview } from "./model";

const PAGE = 1000;

/** All tenants of the month, however many pages they are. */
export function usePreview() {
  const { client } = useApi();
  return useMutation({
    mutationFn: async (body: Schemas["PricePreviewCreate"]) => {
      const pages: Preview[] = [];
      for (;;) {
        const after = pages.at(-1)?.data.at(-1)?.tenant;
        const { data } = await client.POST("/admin/v1/prices/preview", {
          params: { query: { limit: PAGE, after } },
          body,
        });
        const page = required(data);
        pages.push(page);
        if (!page.has_more)
          return { preview: { ...page, data: pages.flatMap((each) => each.data) }, body };
      }
    },
  });
}
